"""A checkpoint: the parameters after some step, and what the run is. It is written beside its place and moved there, so that whatever
kills the process leaves the one before whole."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusebench import atomic
from fusebench.errors import StorageError, UsageError

FILE = "checkpoint.npz"
ABOUT = "about"  # the name of the array that holds all that is no array


@dataclass(frozen=True)
class Checkpoint:
    """The parameters by name after `step` steps; `model` and `run` are what has to be the same where a run goes on, `keys` those of the
    command line that it need not be told again."""

    step: int
    model: Mapping[str, Any]
    run: Mapping[str, Any]
    keys: Mapping[str, str]
    parameters: Mapping[str, np.ndarray]


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Raises StorageError where the disk does not take it."""
    about = {"step": checkpoint.step, "model": checkpoint.model, "run": checkpoint.run, "keys": checkpoint.keys}
    file = folder / FILE
    try:
        with atomic.replacing(file) as part, part.open("wb") as out:
            text = np.frombuffer(json.dumps(about).encode(), np.uint8)
            np.savez(out, allow_pickle=False, **{ABOUT: text}, **checkpoint.parameters)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror or error}") from error


def load(folder: Path) -> Checkpoint:
    """What `save` wrote. Raises UsageError for anything else."""
    file = folder / FILE
    if not file.is_file():
        raise UsageError(f"resume=true: there is no {file}; without it the run begins at step 0")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            about = json.loads(arrays[ABOUT].tobytes())
            parameters = {name: arrays[name] for name in arrays.files if name != ABOUT}
            model, run, keys = (dict(about[name]) for name in ("model", "run", "keys"))
            return Checkpoint(int(about["step"]), model, run, keys, parameters)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{file} is no checkpoint: {error}") from error


def check_same(found: Mapping[str, Any], expected: Mapping[str, Any], file: Path) -> None:
    """Raises UsageError, with the first difference, where a checkpoint is of something else than what is asked for."""
    for name, value in expected.items():
        if (other := found.get(name)) != value:
            raise UsageError(
                f"{file} has {name} {_short(other)}, and this run {_short(value)}: they have to be the same to go on"
            )


def _short(value: Any) -> str:
    return f"{value!r:.60}"
