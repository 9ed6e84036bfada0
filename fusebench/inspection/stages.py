"""The stages of compiled launches, printed or written into a folder."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.errors import StorageError, UsageError
from fusebench.inspection import figures, generated, ptx, standalone, traced
from fusebench.inspection.cells import Inspected
from fusebench.inspection.compiled import Compiled
from fusebench.inspection.lines import Placed
from fusebench.inspection.listing import collapsed, histogram
from fusebench.inspection.opcodes import by_class
from fusebench.inspection.targets import Target
from fusebench.workers.stages import TEXTS, NotInspected

SUFFIXES = {"stablehlo": ".mlir", "hlo": ".hlo", "generated": ".py", "fx": ".py"}
# the names of what is written of a cell
WRITTEN = (
    "run.py", "cell.json", "reference.npz", *standalone.FOLDERS, *(f"[0-9]*_*.{kind}" for kind in (*TEXTS, "cubin", "json")),
    *(f"{stage}{SUFFIXES.get(stage, '.txt')}" for stage in (*traced.STAGES, *generated.STAGES)),
)  # fmt: skip
COUNTED = ("ptx", "sass")  # the stages that are lists of instructions


def lines(compiled: Compiled, stage: str) -> Iterator[str]:
    """A stage of a launch as it is shown: instructions with runs of one opcode collapsed, or the text as it is. Raises KeyError."""
    if stage in COUNTED:
        yield from collapsed(instructions(compiled, stage))
    else:
        yield from compiled.stage(stage).splitlines()


def lacking(compiled: Compiled, stage: str) -> str:
    """What stands in the place of a stage that a launch's compiler does not have, or "" where it has it."""
    have = {*compiled.texts, "sass"}
    return "" if stage in have else f"its compiler has no {stage}: it has {', '.join(s for s in TEXTS if s in have)}"


def plain(compiled: Compiled, stage: str) -> list[str]:
    """A stage of a launch, a line for each instruction or of the text. Raises KeyError."""
    if stage in COUNTED:
        return [str(i) for i in instructions(compiled, stage)]
    return compiled.stage(stage).splitlines()


def opcodes(compiled: Compiled, stage: str, threshold: int) -> Iterator[str]:
    """A line for each opcode of a stage that is a list of instructions, and their sum. Raises KeyError."""
    found = instructions(compiled, stage)
    for opcode, count in histogram(found, threshold):
        yield f"{count:8}  {opcode}"
    yield f"{len(found):8}  instructions"


def instructions(compiled: Compiled, stage: str) -> Sequence[Placed]:
    """The instructions of a stage that is a list of them, floats as numbers. Raises KeyError."""
    if stage == "sass":
        return compiled.code.instructions
    return [
        dataclasses.replace(i, operands=ptx.with_decimal_floats(i.operands)) for i in ptx.parse(compiled.stage(stage))
    ]


def save(found: Sequence[Inspected], kernels: Mapping[str, Kernel], target: Target, folder: Path) -> list[str]:
    """Writes of each cell to its place in FOLDER every stage as its compiler gave it, with its figures, and a script that runs it
    (standalone.py). What an earlier call wrote there goes. Returns what could not be written of which cell.

    Raises UsageError where the folder cannot be one, StorageError where the disk takes no more."""
    references, missing = standalone.References(), list[str]()
    seeds = {one.cell.seed for one in found}
    for one in found:
        cell, kernel = one.cell, kernels[one.cell.case.kernel]
        place = folder / place_of(cell, target, named=seeds != {0})
        left_out = one.failed or one.reason.startswith("skipped:")  # what ended a compiler is not imported here
        try:
            _clear(place)
            if not left_out:
                place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"out={folder}: expected a folder that can be written: {error.strerror}") from error
        if left_out:
            missing.append(f"{cell.label}: {one.reason}")
            continue
        try:
            for number, compiled in enumerate(one.launches, 1):
                _write(compiled, place / f"{number}_{_name(compiled.name.split('<')[0])}")
            missing += [f"{cell.label}, {said}" for said in _write_traces(cell, kernel, place)]
            programs = dict.fromkeys(c.file for c in one.launches if c.file)
            standalone.write(place, cell, kernel, target, references, programs)
        except NotInspected as error:
            missing.append(f"{cell.label}: {error}")
        except OSError as error:
            raise StorageError(f"{place}: {error}") from error
    return missing


def place_of(cell: Cell, target: Target, named: bool = False) -> Path:
    """<kernel>/<case>/<cell>_<arch>/, with the seed behind it where it is to be `named`."""
    seed = f"_seed_{cell.seed}" if named else ""
    return Path(cell.case.kernel, _name(cell.case.id), f"{_name(cell.label)}_{target.arch}{seed}")


def _clear(place: Path) -> None:
    """Takes away what `save` writes, and nothing else: launches and stages have other names when a kernel has changed."""
    for pattern in WRITTEN:
        for path in place.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _write_traces(cell: Cell, kernel: Kernel, place: Path) -> Iterator[str]:
    """Writes what JAX and XLA, or torch.compile, make of the cell on this machine's device; yields which stages cannot be had."""
    implementation = kernel.implementations[cell.implementation]
    names = traced.STAGES if implementation.backend == "jax" else generated.STAGES
    texts: dict[str, str] = {}
    try:
        if implementation.backend == "jax":
            for stage in traced.STAGES:
                texts[stage] = traced.trace(cell, implementation, kernel, stage)
        elif implementation.name.startswith(generated.COMPILES):
            texts = generated.traces(cell, implementation, kernel)
    except NotInspected as error:
        yield f"stages {', '.join(names)}: {error}"
    for stage, text in texts.items():
        (place / f"{stage}{SUFFIXES.get(stage, '.txt')}").write_text(text + "\n", encoding="utf-8")


def _write(compiled: Compiled, base: Path) -> None:
    (base.parent / f"{base.name}.cubin").write_bytes(compiled.cubin)
    for stage in (*compiled.texts, "sass"):
        (base.parent / f"{base.name}.{stage}").write_text(compiled.stage(stage), encoding="utf-8")
    loop = compiled.code.hottest_loop()
    said = {
        "name": compiled.name, "symbol": compiled.symbol, "grid": compiled.grid, "threads": compiled.threads,
        "sha256": compiled.digest, "whole": figures.row(compiled), "loop": {"instructions": len(loop), **by_class(loop)},
    }  # fmt: skip
    (base.parent / f"{base.name}.json").write_text(json.dumps(said, indent=1), encoding="utf-8")


def _name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", text)


def of(found: Sequence[Inspected]) -> list[str]:
    """The stages that any of the launches has, in the order of compilation."""
    have = {stage for one in found for compiled in one.launches for stage in (*compiled.texts, "sass")}
    return [stage for stage in TEXTS if stage in have]
