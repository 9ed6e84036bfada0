"""Where a record comes from: the code that was measured, the machine, packages and commit that it was measured with, and what its
authors published of it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from fusebench import discovery, machine, sources
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.records.record import Environment, Figure, Record, Source


def new_record(cell: Cell, device: str) -> Record:
    """The record of a cell before anything happened to it."""
    repository = Path(__file__).resolve().parent.parent
    environment = Environment(
        machine.DeviceInfo(device), machine.packages(), sys.version.split()[0], platform.node(),
        machine.git_commit(repository, "fusebench", "implementations"),
    )  # fmt: skip
    return Record(cell.id, cell.label, cell, "ok", environment, datetime.now(UTC).isoformat())


def published(kernel: Kernel, cell: Cell) -> tuple[Figure, ...]:
    """The authors' figures for the cell's case and its implementation and variant, whatever their config, and those for the case of
    which nobody says what was measured."""
    labels = (replace(cell, config={}).label, "")
    return tuple(
        Figure(us / 1e6, label, entry.device, method)
        for entry in kernel.mathematics.published
        if make_case(kernel, entry.case, entry.dtype, entry.precision, entry.options).id == cell.case.id
        for method, by_label in entry.figures.items()
        for label, us in by_label.items()
        if label in labels
    )


def source_of(file: Path, mathematics: Mapping[str, str]) -> Source | None:
    """Which code is about to be measured, as far as can be told without loading it: the implementation's file, and the files of
    kernel.py. A file outside this repository has a history of its own, and may be in none. None where it was taken away since
    the run began: its worker will say so."""
    try:
        own = {f"{file.parent.name}/{file.name}": sources.digest(file)}
        return with_files(Source(str(file), "", {}, machine.git_commit(file.parent)), {**mathematics, **own})
    except OSError:
        return None


def with_files(source: Source, files: Mapping[str, str]) -> Source:
    """The source with more files: those that the worker loaded and compiled."""
    files = {**source.files, **files}
    return replace(source, files=files, sha256=sources.together(files))


def changed(source: Source | None, file: Path, roots: Sequence[Path]) -> str:
    """The name of a file that is not any more as the record has it, or ""; `file` is the implementation's, now."""
    if source is None:  # it was gone
        return file.name if file.exists() else ""
    return sources.changed(source.files, [file.parent.parent, *discovery.parents_of(roots)])
