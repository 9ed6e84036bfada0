"""Where a record comes from: the code that was measured, and the machine, packages and commit that it was measured with."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fusebench import discovery, machine
from fusebench.contract import Cell
from fusebench.records.record import Environment, Record, Source


def new_record(cell: Cell, device: str) -> Record:
    """The record of a cell before anything happened to it."""
    repository = Path(__file__).resolve().parent.parent
    environment = Environment(
        machine.DeviceInfo(device), machine.packages(), sys.version.split()[0], platform.node(),
        machine.git_commit(repository, "fusebench", "implementations"),
    )  # fmt: skip
    return Record(cell.id, cell.label, cell, "ok", environment, datetime.now(UTC).isoformat())


def source_of(file: Path) -> Source | None:
    """Which code was measured: the implementation's file, and what implementations share. A file outside this repository has a
    history of its own, and may be in none. None where it was taken away since the run began: its worker will say so."""
    try:
        own = hashlib.sha256(file.read_bytes()).hexdigest()
        return Source(str(file), own, _digest(_shared(file)), machine.git_commit(file.parent))
    except OSError:
        return None


def _shared(file: Path) -> list[Path]:
    """What an implementation may be made of beside its file: kernel.py, Python with an underscore, and CUDA sources and headers,
    in its folder and in the one above, where older commits have the shared code; and all of `_shared`, there or else in the
    project."""
    root = file.parent.parent
    shared = root / "_shared" if (root / "_shared").is_dir() else discovery.HOME / "_shared"
    near = ("kernel.py", "_*.py", "*.cu", "*.cuh", "*.h")
    found = [f for folder in (file.parent, root) for pattern in near for f in folder.glob(pattern)]
    return sorted(found + [f for pattern in ("*.py", *near[2:]) for f in shared.rglob(pattern)])


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
