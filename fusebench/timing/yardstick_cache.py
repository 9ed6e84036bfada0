"""The yardsticks of earlier runs, so that a rate is measured once a device, driver and Torch: one JSON file a user.

The file is `yardsticks.json` in FUSEBENCH_CACHE, or else in `fusebench` under XDG_CACHE_HOME or ~/.cache: {key: {name: entry}},
with yardstick.py's keys, names and entries. A file that cannot be read or written costs a line of warning and a measurement.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fusebench.timing.yardstick import Entry

FILE = "yardsticks.json"
BUDGET_S = 0.2  # of sampling for each rate


def folder() -> Path:
    """Where the file lies. Raises RuntimeError where the user has no home."""
    if own := os.environ.get("FUSEBENCH_CACHE"):
        return Path(own)
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "fusebench"


def read(key: str) -> dict[str, Entry]:
    """What is known of that key: {name: entry}; {} with a line of warning where the file is broken or unreadable."""
    return _read_all().get(key, {})


def keep(key: str, entries: dict[str, Entry]) -> None:
    """Adds the entries to the file, which is replaced as a whole: a reader sees the old or the new one. Of two processes that
    write at one moment, one loses its entries and will measure them again."""
    temporary = None
    try:
        known = _read_all(warn=False)
        known[key] = known.get(key, {}) | entries
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder(), prefix=f".{FILE}.", delete=False) as file:
            temporary = Path(file.name)
            json.dump(known, file, indent=1)
        temporary.replace(folder() / FILE)
    except (OSError, RuntimeError) as error:
        if temporary:
            temporary.unlink(missing_ok=True)
        _warn(f"the yardsticks are not kept for the next run: {error}; FUSEBENCH_CACHE=DIR names another folder")


def find(
    worker: Any, names: Sequence[str], timeout_s: float, fresh: bool = False, on_name: Callable[[str], None] = lambda name: None
) -> tuple[str, dict[str, Entry]]:  # fmt: skip
    """The key of Torch's worker, and the entries of those names: from the file, or measured now and kept; all now if `fresh`.

    A rate that cannot be measured has the entry {"reason": why}. `on_name` hears which one is about to be measured. Raises
    WorkerLost if the worker dies of one; those measured before it are kept.
    """
    key = str(worker.ask({"do": "yardstick_key"}, timeout_s)["key"])
    found = {} if fresh else {name: entry for name, entry in read(key).items() if name in names}
    measured: dict[str, Entry] = {}
    try:
        for name in [n for n in names if n not in found]:
            on_name(name)
            answer = worker.ask({"do": "yardstick", "name": name, "budget_s": BUDGET_S}, timeout_s)
            if "value" in answer:
                measured[name] = {**answer, "date": datetime.now(UTC).isoformat(timespec="seconds")}
            else:
                found[name] = {"reason": answer["reason"]}
    finally:
        if measured:
            keep(key, measured)
    return key, found | measured


def _read_all(warn: bool = True) -> dict[str, dict[str, Entry]]:
    try:
        found = json.loads((folder() / FILE).read_text())
        if not all(_is_entry(entry) for entries in found.values() for entry in entries.values()):
            raise ValueError("an entry is none")
        return found
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        if warn and not isinstance(error, FileNotFoundError):
            _warn(f"{folder() / FILE} cannot be used ({error}): the yardsticks are measured anew")
    except RuntimeError:
        pass  # no home, no file
    return {}


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("n"), int) or not isinstance(entry.get("date"), str):
        return False
    value = entry.get("value")
    return isinstance(value, float) and math.isfinite(value) and value > 0


def _warn(line: str) -> None:
    print("fusebench: " + " ".join(line.split()), file=sys.stderr)
