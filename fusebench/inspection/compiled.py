"""The programs that a cell launches, compiled ahead of time for an architecture: every stage on the way to machine code."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from fusebench.contract import Cell, Tunable
from fusebench.discovery import Implementation, load_implementation
from fusebench.errors import UsageError
from fusebench.inspection import elf, sass
from fusebench.inspection.disassembler import Listings
from fusebench.inspection.targets import Target

TEXTS = ("ttir", "ttgir", "llir", "ptx", "sass")  # the stages that are text, in the order of compilation
WARP = 32


class NotInspected(Exception):
    """Why a cell has nothing to show; `failed` where that is a fault of its own."""

    def __init__(self, reason: str, failed: bool = False):
        super().__init__(reason)
        self.failed = failed


def failed(error: Exception) -> NotInspected:
    """What a kernel's author wrote, or a compiler found in it, in a line."""
    first = next(filter(None, str(error).splitlines()), "")
    return NotInspected(f"{type(error).__name__}: {first}", failed=True)


class Texts(Mapping[str, str]):
    """Texts by name, each made when it is first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], str]]):
        self._makers = {name: cache(maker) for name, maker in makers.items()}

    def __getitem__(self, name: str) -> str:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True)
class Compiled:
    """One launch: its kernel's name and its symbol in the cubin, blocks and threads of a block, bytes of dynamic shared memory, and
    the stages by name. The last stage, `sass`, is read from the cubin when it is asked for, together with those of other launches that
    share `listings`. `file` is that of CUDA C++, or None."""

    name: str
    symbol: str
    grid: tuple[int, ...]
    threads: int
    dynamic_shared: int
    cubin: bytes = field(repr=False)
    texts: Mapping[str, str] = field(repr=False)
    listings: Listings = field(repr=False)
    file: Path | None = None

    @cached_property
    def resources(self) -> elf.Resources:
        return elf.resources(self.cubin, self.symbol)

    @cached_property
    def code(self) -> sass.Code:
        return sass.parse(self.listing, self.symbol)

    @cached_property
    def listing(self) -> str:
        return self.listings.of(self.cubin)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block, static and dynamic."""
        return self.dynamic_shared + self.resources.shared

    @property
    def digest(self) -> str:
        """Of the machine code alone: names and debugging sections make no difference."""
        return hashlib.sha256(self.resources.code).hexdigest()[:12]

    def stage(self, name: str) -> str:
        """The text of a stage. Raises KeyError for one that its compiler does not have."""
        return self.listing if name == "sass" else self.texts[name]


def compile_cell(
    cell: Cell, implementation: Implementation, target: Target, listings: Listings | None = None
) -> list[Compiled]:
    """What the cell launches on the target, in order. Cells that get the same `listings` are disassembled together. Raises
    NotInspected."""
    listings = listings or Listings()
    if reason := implementation.broken or implementation.missing():
        raise NotInspected(reason)
    module = load(implementation)
    skip = getattr(module, "skip", None)
    if skip and (reason := skip(cell.case, cell.variant, target.device)):
        raise NotInspected(f"skipped: {reason}")
    if not hasattr(module, "launches"):
        raise NotInspected("names no launches (fusebench/contract.py): its kernels are its framework's own")
    try:
        launches = module.launches(cell.case, cell.variant, target.device, chosen_config(module, cell, target))
        made = [_compile(launch, target, listings) for launch in launches]
    except (NotInspected, UsageError):
        raise
    except Exception as error:
        raise failed(error) from error
    for one in made:
        listings.add(one.cubin)
    return made


def load(implementation: Implementation) -> ModuleType:
    """The implementation's module. Raises NotInspected where it does not import."""
    os.environ.pop("TRITON_INTERPRET", None)  # what is to be interpreted cannot be compiled
    try:
        return load_implementation(implementation.kernel, implementation.name)
    except Exception as error:
        raise NotInspected(f"does not import: {type(error).__name__}: {error}", failed=True) from error


def chosen_config(module: ModuleType, cell: Cell, target: Target) -> Mapping[str, Tunable]:
    """The implementation's own choice with what the cell sets. Raises NotInspected for a config that cannot run there."""
    if not hasattr(module, "config"):
        return {}
    own = module.config(cell.case, cell.variant, target.device)
    config = own | {name: value for name, value in cell.config.items() if name in own}
    if unused := [name for name in cell.config if name not in own]:
        raise NotInspected(f"skipped: this case has no use for config.{unused[0]}")
    if config and hasattr(module, "fits") and (reason := module.fits(cell.case, cell.variant, target.device, config)):
        raise NotInspected(f"skipped: {reason}")
    return config


def _compile(launch: Any, target: Target, listings: Listings) -> Compiled:
    grid = launch.grid if isinstance(launch.grid, tuple) else (launch.grid,)
    compile_ = _compile_cuda if hasattr(launch, "program") else _compile_triton
    return compile_(launch, grid, target, listings)


def _compile_cuda(launch: Any, grid: tuple[int, ...], target: Target, listings: Listings) -> Compiled:
    from fusebench.backends.cuda import compile_cubin, compile_ptx

    def ptx() -> str:  # compiled once more, and seldom asked for
        return compile_ptx(Path(program.file), target.arch, program.name, program.defines)

    program = launch.program
    cubin = compile_cubin(Path(program.file), target.arch, [program.name], program.defines, lines=True)
    symbol, file = cubin.symbols[program.name], Path(program.file)
    shared, texts = launch.shared_memory, Texts({"ptx": ptx})
    return Compiled(program.name, symbol, grid, launch.block, shared, cubin.code, texts, listings, file)


def _compile_triton(launch: Any, grid: tuple[int, ...], target: Target, listings: Listings) -> Compiled:
    """Pointers are taken to be aligned to 16 bytes, as the frameworks' are; of the integers nothing is known."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    signature = {n: "constexpr" if n in launch.constexprs else launch.signature[n] for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
    source = ASTSource(launch.kernel, signature, {(names.index(n),): v for n, v in launch.constexprs.items()}, aligned)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    try:
        made = triton.compile(source, target=GPUTarget("cuda", target.capability, WARP), options=options)
    except subprocess.CalledProcessError as error:
        raise NotInspected(f"ptxas: {error}", failed=True) from error
    texts = {name: str(text) for name, text in made.asm.items() if name in TEXTS}
    name, threads = str(made.metadata.name), WARP * int(made.metadata.num_warps)
    return Compiled(name, name, grid, threads, int(made.metadata.shared), made.asm["cubin"], texts, listings)
