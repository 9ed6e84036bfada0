"""Records on disk: one complete JSON object a line, written and flushed as each cell ends."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fusebench import machine
from fusebench.contract import Cell
from fusebench.errors import UsageError

FILE = "records.jsonl"
SCHEMA = 1


def new(cell: Cell, device: str, source: Path | None = None) -> dict[str, Any]:
    """A record before anything happened to its cell; `source` is the implementation's file."""
    home = Path(__file__).resolve().parent.parent
    return {
        "schema": SCHEMA, "cell": cell.id, "case": cell.case.as_dict(), "case_id": cell.case.id, "label": cell.label,
        "kernel": cell.case.kernel, "implementation": cell.implementation, "variant": cell.variant, "seed": cell.seed, "inputs": cell.inputs,
        "status": "ok", "reason": None, "source": _source(source),
        "device": {"type": device}, "packages": machine.packages(), "python": sys.version.split()[0],
        "git_commit": machine.git_commit(home, "fusebench", "implementations"), "host": platform.node(), "began": datetime.now(UTC).isoformat(),
    }  # fmt: skip


def _source(file: Path | None) -> dict[str, Any] | None:
    """Which code was measured: a file outside this repository has a history of its own, and may be in none."""
    if file is None:
        return None
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"file": str(file), "sha256": digest, "git_commit": machine.git_commit(file.parent)}


def append(folder: Path, record: dict[str, Any]) -> None:
    """Adds one record; a line that an interrupted run left unfinished is cut off first. Raises OSError on a full disk."""
    line = (json.dumps(plain(record), allow_nan=False) + "\n").encode()
    with (folder / FILE).open("ab+") as file:
        _drop_partial_line(file)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> list[dict[str, Any]]:
    """The complete records of a run folder, in the order written; [] where there are none. Raises UsageError for a line
    that is none; the last line may be unfinished."""
    path = folder / FILE
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise UsageError(f"{path} line {number} is no record: {line[:40]!r}") from error
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


def _drop_partial_line(file: Any) -> None:
    file.seek(0)
    content = file.read()
    if content and not content.endswith(b"\n"):
        file.truncate(content.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
