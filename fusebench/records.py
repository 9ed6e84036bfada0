"""Records on disk: one complete JSON object a line, written and flushed as each cell ends."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fusebench import machine
from fusebench.contract import Cell

FILE = "records.jsonl"
SCHEMA = 1


def new(cell: Cell, flops: int, moved_bytes: int, device: str) -> dict[str, Any]:
    """A record before anything happened to its cell."""
    return {
        "schema": SCHEMA, "cell": cell.id, "case": cell.case.as_dict(), "case_id": cell.case.id, "label": cell.label,
        "kernel": cell.case.kernel, "implementation": cell.implementation, "variant": cell.variant, "seed": cell.seed,
        "status": "ok", "reason": None, "flops": flops, "moved_bytes": moved_bytes,
        "device": {"type": device}, "packages": machine.packages(), "python": sys.version.split()[0],
        "git_commit": machine.git_commit(Path(__file__).resolve().parent.parent), "began": datetime.now(UTC).isoformat(),
    }  # fmt: skip


def append(folder: Path, record: dict[str, Any]) -> None:
    """Adds one record; a line that an interrupted run left unfinished is cut off first. Raises OSError on a full disk."""
    line = (json.dumps(plain(record), allow_nan=False) + "\n").encode()
    with (folder / FILE).open("ab+") as file:
        _drop_partial_line(file)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> list[dict[str, Any]]:
    """The complete records of a run folder, in the order written; [] where there are none."""
    path = folder / FILE
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line.strip()]


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
