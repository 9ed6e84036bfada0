"""The programs that a cell launches, compiled ahead of time for an architecture: every stage on the way to machine code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path

from fusebench.backends.cuda import compile_ptx
from fusebench.contract import Cell
from fusebench.discovery import Implementation
from fusebench.inspection import elf, sass
from fusebench.inspection.disassembler import Listings
from fusebench.inspection.targets import Target
from fusebench.workers import protocol
from fusebench.workers.stages import NotInspected, check_there, compile_stages

Ask = Callable[[protocol.CompileStages], protocol.CompiledStages]  # in this process or in another one


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
    cell: Cell, implementation: Implementation, target: Target, listings: Listings | None = None,
    ask: Ask = compile_stages, ptx: bool = False, fits: bool = True,
) -> list[Compiled]:  # fmt: skip
    """What the cell launches on the target, in order, compiled by `ask`; the `ptx` of CUDA C++ is made at once, or from its source when
    it is looked at. A config that does not fit is refused unless `fits` is false. Cells that get the same `listings` are disassembled together. Raises NotInspected."""
    listings = listings or Listings()
    check_there(implementation)
    config, device = dict(cell.config), target.device
    made = ask(
        protocol.CompileStages(cell.case, cell.implementation, cell.variant, config, device, target.arch, ptx, fits)
    )
    if made.reason:
        raise NotInspected(made.reason, made.failed)
    for one in made.launches:
        listings.add(one.cubin)
    return [_compiled(one, target, listings) for one in made.launches]


def _compiled(made: protocol.LaunchStages, target: Target, listings: Listings) -> Compiled:
    file, texts = made.file and Path(made.file), made.texts
    if file and not texts:
        texts = Texts({"ptx": partial(compile_ptx, file, target.arch, made.name, made.defines)})
    shared = made.dynamic_shared
    return Compiled(made.name, made.symbol, made.grid, made.threads, shared, made.cubin, texts, listings, file or None)
