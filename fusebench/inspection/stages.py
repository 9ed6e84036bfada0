"""The stages of compiled launches, printed or written into a folder."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fusebench.errors import StorageError, UsageError
from fusebench.inspection import figures, ptx
from fusebench.inspection.cells import Inspected
from fusebench.inspection.compiled import TEXTS, Compiled
from fusebench.inspection.lines import Placed
from fusebench.inspection.listing import collapsed, histogram
from fusebench.inspection.opcodes import by_class

COUNTED = ("ptx", "sass")  # the stages that are lists of instructions


def lines(compiled: Compiled, stage: str) -> Iterator[str]:
    """A stage of a launch as it is shown: instructions with runs of one opcode collapsed, or the text as it is. Raises KeyError."""
    if stage in COUNTED:
        yield from collapsed(instructions(compiled, stage))
    else:
        yield from compiled.stage(stage).splitlines()


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


def save(found: Sequence[Inspected], folder: Path) -> None:
    """Writes every stage as the compiler gave it to FOLDER/<kernel>/<case>/<cell>/<number>_<launch>.<stage>, beside figures.json.
    Raises UsageError where the folder cannot be one, StorageError where the disk takes no more."""
    for one in found:
        for number, compiled in enumerate(one.launches, 1):
            cell = folder / one.cell.case.kernel / _name(one.cell.case.id) / _name(one.cell.label)
            base = cell / f"{number}_{_name(compiled.name.split('<')[0])}"
            try:
                cell.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"out={folder}: expected a folder that can be written: {error}") from error
            try:
                _write(compiled, base)
            except OSError as error:
                raise StorageError(f"{base}: {error}") from error


def _write(compiled: Compiled, base: Path) -> None:
    base.with_suffix(".cubin").write_bytes(compiled.cubin)
    for stage in (*compiled.texts, "sass"):
        base.with_suffix(f".{stage}").write_text(compiled.stage(stage), encoding="utf-8")
    loop = compiled.code.hottest_loop()
    said = {
        "name": compiled.name, "symbol": compiled.symbol, "grid": compiled.grid, "threads": compiled.threads,
        "sha256": compiled.digest, "whole": figures.row(compiled), "loop": {"instructions": len(loop), **by_class(loop)},
    }  # fmt: skip
    base.with_suffix(".json").write_text(json.dumps(said, indent=1), encoding="utf-8")


def _name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", text)


def of(found: Sequence[Inspected]) -> list[str]:
    """The stages that any of the launches has, in the order of compilation."""
    have = {stage for one in found for compiled in one.launches for stage in (*compiled.texts, "sass")}
    return [stage for stage in TEXTS if stage in have]
