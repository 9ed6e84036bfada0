"""What a cell launches, compiled ahead of time for an architecture with every stage on the way to machine code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fusebench.contract import Cell, Device, Tunable
from fusebench.discovery import Implementation, load_implementation
from fusebench.errors import cause
from fusebench.workers import protocol

TEXTS = ("ttir", "ttgir", "llir", "ptx", "sass")  # the stages that are text, in the order of compilation
WARP = 32


class NotInspected(Exception):
    """Why a cell has nothing to show; `failed` where that is a fault of its own."""

    def __init__(self, reason: str, failed: bool = False):
        super().__init__(reason)
        self.failed = failed


def failed(error: Exception) -> NotInspected:
    """What a kernel's author wrote, or a compiler found in it, in a line."""
    return NotInspected(f"{type(error).__name__}: {cause(error)}", failed=True)


def check_there(implementation: Implementation) -> None:
    """Raises NotInspected where its file is broken or what it needs is missing."""
    if implementation.broken:
        raise NotInspected(implementation.broken, failed=True)
    if reason := implementation.missing():
        raise NotInspected(reason)


def compile_stages(asked: protocol.CompileStages) -> protocol.CompiledStages:
    """What the cell launches on the device, in order, or the reason why it launches nothing there."""
    try:
        return protocol.CompiledStages(tuple(_launches(asked)))
    except NotInspected as error:
        return protocol.CompiledStages(reason=str(error), failed=error.failed)


def _launches(asked: protocol.CompileStages) -> list[protocol.LaunchStages]:
    """Raises NotInspected."""
    module = load(asked.case.kernel, asked.implementation)
    skip = getattr(module, "skip", None)
    if skip and (reason := skip(asked.case, asked.variant, asked.device)):
        raise NotInspected(f"skipped: {reason}")
    if not hasattr(module, "launches"):
        raise NotInspected("names no launches (fusebench/contract.py): its kernels are its framework's own")
    cell = Cell(asked.case, asked.implementation, asked.variant, config=asked.config)
    try:
        config = chosen_config(module, cell, asked.device, asked.fits)
        return [_compile(launch, asked) for launch in module.launches(cell.case, cell.variant, asked.device, config)]
    except NotInspected:
        raise
    except Exception as error:
        raise failed(error) from error


def load(kernel: str, implementation: str) -> ModuleType:
    """The implementation's module. Raises NotInspected where it does not import."""
    os.environ.pop("TRITON_INTERPRET", None)  # what is to be interpreted cannot be compiled
    try:
        return load_implementation(kernel, implementation)
    except Exception as error:
        raise NotInspected(f"does not import: {type(error).__name__}: {error}", failed=True) from error


def chosen_config(module: ModuleType, cell: Cell, device: Device, fits: bool = True) -> Mapping[str, Tunable]:
    """The implementation's own choice with what the cell sets. Raises NotInspected for a config that cannot run there, of those that do
    not fit only with `fits`."""
    if not hasattr(module, "config"):
        return {}
    own = module.config(cell.case, cell.variant, device)
    config = own | {name: value for name, value in cell.config.items() if name in own}
    if unused := [name for name in cell.config if name not in own]:
        raise NotInspected(f"skipped: this case has no use for config.{unused[0]}")
    if fits and config and hasattr(module, "fits") and (reason := module.fits(cell.case, cell.variant, device, config)):
        raise NotInspected(f"skipped: {reason}")
    return config


def _compile(launch: Any, asked: protocol.CompileStages) -> protocol.LaunchStages:
    grid = launch.grid if isinstance(launch.grid, tuple) else (launch.grid,)
    compile_ = _compile_cuda if hasattr(launch, "program") else _compile_triton
    return compile_(launch, tuple(map(int, grid)), asked)


def _compile_cuda(launch: Any, grid: tuple[int, ...], asked: protocol.CompileStages) -> protocol.LaunchStages:
    from fusebench.backends.cuda import compile_cubin, compile_ptx

    file, name, defines = Path(launch.program.file), launch.program.name, tuple(launch.program.defines)
    cubin = compile_cubin(file, asked.arch, [name], defines, lines=True)
    texts = {"ptx": compile_ptx(file, asked.arch, name, defines)} if asked.ptx else {}
    return protocol.LaunchStages(
        name, cubin.symbols[name], grid, int(launch.block), int(launch.shared_memory), cubin.code, texts, str(file), defines
    )  # fmt: skip


def _compile_triton(launch: Any, grid: tuple[int, ...], asked: protocol.CompileStages) -> protocol.LaunchStages:
    """Pointers are taken to be aligned to 16 bytes, as the frameworks' are; of the integers nothing is known."""
    import triton
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    signature = {n: "constexpr" if n in launch.constexprs else launch.signature[n] for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
    source = ASTSource(launch.kernel, signature, {(names.index(n),): v for n, v in launch.constexprs.items()}, aligned)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    try:
        made = triton.compile(source, target=triton_target(asked.device), options=options)
    except subprocess.CalledProcessError as error:
        raise NotInspected(f"ptxas: {error}", failed=True) from error
    texts = {name: str(text) for name, text in made.asm.items() if name in TEXTS}
    name, threads = str(made.metadata.name), WARP * int(made.metadata.num_warps)
    return protocol.LaunchStages(name, name, grid, threads, int(made.metadata.shared), made.asm["cubin"], texts)


def triton_target(device: Device) -> Any:
    """The device as Triton names it: 90 for the compute capability (9, 0)."""
    from triton.backends.compiler import GPUTarget

    major, minor = device.capability
    return GPUTarget("cuda", 10 * major + minor, WARP)
