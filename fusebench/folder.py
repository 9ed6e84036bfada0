"""The folder of a run: its name, its lock, and the configuration that a later `resume=` goes on with."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from fusebench.errors import StorageError, UsageError
from fusebench.records.store import FILE

RESULTS = Path("results")
LOCK = ".lock"


def moment() -> Path:
    """results/<this millisecond>."""
    return RESULTS / datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")[:-3]


def new() -> Path:
    """A new folder of that name: of two runs that start in one millisecond, the second takes the next one.

    Raises UsageError if it cannot be made.
    """
    while True:
        folder = moment()
        try:
            folder.mkdir(parents=True)
            return folder
        except OSError as error:
            if not (isinstance(error, FileExistsError) and folder.is_dir()):
                raise _unwritable(folder, error) from error
            time.sleep(0.001)


def remove_empty(folder: Path) -> None:
    """Takes a folder away in which nothing was kept."""
    with contextlib.suppress(OSError):
        if {file.name for file in folder.iterdir()} <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
            RESULTS.rmdir()


def find(command: str, resume: str) -> Path:
    """The kept configuration of the run that `resume=` names: a folder, a name under results/, or `latest`.

    Raises UsageError if there is none.
    """
    if resume == "latest":
        runs = [file.parent for file in RESULTS.glob(f"**/{command}.yaml")]
        folder = max(runs, key=lambda run: run.stat().st_mtime, default=RESULTS / "latest")
    else:
        folder = Path(resume) if Path(resume).is_dir() else RESULTS / resume
    file = folder / f"{command}.yaml"
    if not file.is_file():
        latest = ", ".join(p.parent.name for p in sorted(RESULTS.glob(f"*/{command}.yaml"))[-5:])
        raise UsageError(f"resume={resume}: no {command} run there; the latest in {RESULTS}/ are: {latest or 'none'}")
    return file


def load(file: Path) -> dict[str, Any]:
    """What `keep` wrote. Raises UsageError for a file that is not that."""
    try:
        kept = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(kept, dict) or not kept or not all(isinstance(key, str) for key in kept):
        raise UsageError(f"{file} holds no configuration: expected the keys of a run, such as kernel: lola")
    return kept


def keep(chosen: Mapping[str, Any], folder: Path, command: str) -> None:
    """Writes the configuration, whole or not at all, with paths that hold wherever the run is resumed from.

    Raises UsageError if it cannot be written, or if another run is kept there.
    """
    if (folder / FILE).exists() or any(folder.glob("*.yaml")):
        raise UsageError(f"{folder} holds a run already: resume={folder} goes on with it")
    kept = dict(chosen) | {key: _absolute(chosen[key]) for key in ("path", "shapes")}
    partial = folder / f".{command}.yaml"
    try:
        partial.write_text(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True), encoding="utf-8")
        partial.replace(folder / f"{command}.yaml")
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unwritable(folder, error) from error


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Within it no other process writes to the folder. Raises UsageError if one is at work there, or if nothing can be written."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / LOCK).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process is at work in {folder}: wait for it, or start a run of its own"
            ) from error
        except OSError as error:
            raise _unwritable(folder, error) from error
        yield


@contextlib.contextmanager
def scratch(run_folder: Path) -> Iterator[Path]:
    """A folder within that of a run for its input files; those of runs that were killed go. Raises StorageError."""
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(str(error)) from error
    for left in run_folder.glob(".inputs-*"):
        shutil.rmtree(left, ignore_errors=True)
    with temporary(run_folder, ".inputs-") as folder:
        yield folder


@contextlib.contextmanager
def temporary(parent: Path, prefix: str = "") -> Iterator[Path]:
    """A folder that is there within it. Raises StorageError if none can be made."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise StorageError(str(error)) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"results cannot be written to {folder}: {error.strerror or error}; nothing was measured")


def _absolute(value: Any) -> Any:
    if value is None:
        return None
    return [str(Path(p).resolve()) for p in value] if isinstance(value, list) else str(Path(value).resolve())
