"""Records on disk: one complete JSON object a line, written and flushed as each cell ends."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fusebench import machine
from fusebench.contract import Cell
from fusebench.errors import Unstored, UsageError

FILE = "records.jsonl"
SCHEMA = 1
# what every record has, and of which kind
KINDS: dict[str, type | tuple[type, ...]] = {
    "cell": str, "case": dict, "case_id": str, "label": str, "kernel": str, "implementation": str, "seed": int, "inputs": str,
    "status": str, "reason": (str, type(None)), "device": dict,
}  # fmt: skip


def new(cell: Cell, device: str, file: Path | None = None) -> dict[str, Any]:
    """A record before anything happened to its cell; `file` is the implementation's."""
    home = Path(__file__).resolve().parent.parent
    return {
        "schema": SCHEMA, "cell": cell.id, "case": cell.case.as_dict(), "case_id": cell.case.id, "label": cell.label,
        "kernel": cell.case.kernel, "implementation": cell.implementation, "variant": cell.variant, "seed": cell.seed, "inputs": cell.inputs,
        "status": "ok", "reason": None, "source": source_of(file),
        "device": {"type": device}, "packages": machine.packages(), "python": sys.version.split()[0],
        "git_commit": machine.git_commit(home, "fusebench", "implementations"), "host": platform.node(), "began": datetime.now(UTC).isoformat(),
    }  # fmt: skip


def source_of(file: Path | None) -> dict[str, Any] | None:
    """Which code was measured: the implementation's file, and what implementations share. A file outside this repository has a
    history of its own, and may be in none."""
    if file is None:
        return None
    try:
        digest, shared = hashlib.sha256(file.read_bytes()).hexdigest(), _digest(_shared(file))
    except OSError:  # taken away since the run began: its worker will say so
        return None
    return {"file": str(file), "sha256": digest, "shared_sha256": shared, "git_commit": machine.git_commit(file.parent)}


def _shared(file: Path) -> list[Path]:
    """What an implementation may be made of beside its file: kernel.py, Python with an underscore, and CUDA sources and headers,
    in its folder and in the one above."""
    patterns = ("kernel.py", "_*.py", "*.cu", "*.cuh", "*.h")
    return sorted(
        f for folder in (file.parent, file.parent.parent) for pattern in patterns for f in folder.glob(pattern)
    )


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def append(folder: Path, record: dict[str, Any], name: str = FILE) -> None:
    """Adds one record to the file of that name; a line that an interrupted run left unfinished is cut off first.

    Raises Unstored if the disk does not take it; what came onto the disk of it is taken away again.
    """
    line = (json.dumps(plain(record), allow_nan=False) + "\n").encode()
    path = folder / name
    try:
        with path.open("ab+", buffering=0) as file:
            size = _drop_partial_line(file)
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise Unstored(f"{path} cannot be written: {error.strerror}") from error


def read(folder: Path) -> list[dict[str, Any]]:
    """The complete records of a run folder, in the order written; [] where there are none. Raises UsageError for a line
    that is none; the last line may be unfinished."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise UsageError(f"{path} line {number} is no record: {line[:40]!r}")
        found.append(record)
    return found


def read_own(folder: Path) -> list[dict[str, Any]]:
    """`read` for a run that goes on: raises UsageError as well for a record that this version did not write."""
    found = read(folder)
    for number, record in enumerate(found, 1):
        where = f"{folder / FILE} line {number}"
        if record.get("schema") != SCHEMA:
            raise UsageError(f"{where} has the schema {record.get('schema')!r}, not {SCHEMA}: start a run of its own")
        for key, kind in KINDS.items():
            if not isinstance(record.get(key), kind):
                raise UsageError(f"{where} has no usable {key!r}: {record.get(key)!r:.40}")
    return found


def plain(value: Any) -> Any:
    """The value as JSON can carry it: NaN and infinities, which JSON has no word for, become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(v) for v in value]
    return value


def _drop_partial_line(file: Any) -> int:
    """Cuts the file off behind its last complete line, and returns its size."""
    file.seek(0)
    size = int(file.read().rfind(b"\n")) + 1
    file.truncate(size)
    return size
