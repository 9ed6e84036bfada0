"""The yardsticks of earlier runs, so that a rate is measured once a device, driver and Torch: one JSON file a user.

The file is `yardsticks.json` in FUSEBENCH_CACHE, or else in `fusebench` under XDG_CACHE_HOME or ~/.cache: {key: {name: rate}},
with yardstick.py's keys, names and rates. A file that cannot be read or written costs a line of warning and a measurement.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fusebench import atomic
from fusebench.timing.yardstick import Rate

FILE = "yardsticks.json"


def folder() -> Path:
    """Where the file lies. Raises RuntimeError where the user has no home."""
    if own := os.environ.get("FUSEBENCH_CACHE"):
        return Path(own)
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "fusebench"


def read(key: str) -> dict[str, Rate]:
    """What is known of that key, by name; {} with a line of warning where the file is broken or unreadable."""
    return _read_all().get(key, {})


def keep(key: str, rates: Mapping[str, Rate]) -> None:
    """Adds the rates to the file, which is replaced as a whole: a reader sees the old or the new one. Of two processes that
    write at one moment, one loses its rates and will measure them again."""
    try:
        known = _read_all(warn=False)
        known[key] = {**known.get(key, {}), **rates}
        folder().mkdir(parents=True, exist_ok=True)
        with atomic.replacing(folder() / FILE) as partial:
            partial.write_text(json.dumps(msgspec.to_builtins(known), indent=1))
    except (OSError, RuntimeError) as error:
        _warn(f"the yardsticks are not kept for the next run: {error}; FUSEBENCH_CACHE=DIR names another folder")


def _read_all(warn: bool = True) -> dict[str, dict[str, Rate]]:
    try:
        found = msgspec.json.decode((folder() / FILE).read_bytes(), type=dict[str, dict[str, Rate]])
        if not all(0 < rate.value < math.inf for rates in found.values() for rate in rates.values()):
            raise ValueError("a rate is none")
        return found
    except (OSError, ValueError, RecursionError) as error:
        if warn and not isinstance(error, FileNotFoundError):
            _warn(f"{folder() / FILE} cannot be used ({error}): the yardsticks are measured anew")
    except RuntimeError:
        pass  # no home, no file
    return {}


def _warn(line: str) -> None:
    print("fusebench: " + " ".join(line.split()), file=sys.stderr)
