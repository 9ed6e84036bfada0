"""The folder of a run: its name, its lock, and the configuration that a later `resume=` goes on with."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from fusebench import atomic
from fusebench.errors import StorageError, UsageError
from fusebench.records.store import FILE

RESULTS = Path("results")
LOCK = ".lock"
WHOLE = ("diff", "inspect", "profile")  # commands that no resume= goes on with


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
                raise unwritable(folder, error) from error
            time.sleep(0.001)


def check_file(key: str, file: str, endings: Sequence[str]) -> Path:
    """The file that `key` names, which is written when all is done. Raises UsageError for another ending, and where no file can be made."""
    path = Path(file)
    if path.suffix not in endings:
        raise UsageError(f"{key}={file}: expected a file that ends in {', '.join(endings)}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{key}={file}: expected a file that can be written, in a folder that is there")
    return path


def check_folder(key: str, folder: str) -> Path:
    """The folder that `key` names, which is made when all is done. Raises UsageError where none can be."""
    if not folder.strip():
        raise UsageError(f"{key}= is empty; expected a folder, such as {key}=stages")
    path = Path(folder)
    there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{key}={folder}: expected a folder that can be written; {there} cannot")
    return path


def check_results(folder: Path) -> None:
    """Raises UsageError where a run cannot have that folder. Leaves nothing there: only to make a folder tells, as in /proc."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        raise unwritable(folder, error) from error


def remove_empty(folder: Path) -> None:
    """Takes a folder away in which nothing was kept but the arguments of a sweep, and what workers said."""
    with contextlib.suppress(OSError):
        left = list(folder.iterdir())
        if all(file.name == LOCK or file.match("*.sweep.yaml") or file.match("worker-*.log") for file in left):
            for file in left:
                file.unlink()
            folder.rmdir()
            RESULTS.rmdir()


def find(command: str, resume: str) -> Path:
    """The kept configuration of the run, or the kept arguments of the sweep, that `resume=` names: a folder, a name under results/,
    or `latest`. Raises UsageError if there is none.
    """
    names = (f"{command}.yaml", sweep_file(command))
    if resume == "latest":
        runs = [file.parent for name in names for file in RESULTS.glob(f"**/{name}")]
        folder = whole(max(runs, key=lambda run: run.stat().st_mtime, default=RESULTS / "latest"), command)
    else:
        folder = Path(resume) if Path(resume).is_dir() else RESULTS / resume
    for name in names:
        if (folder / name).is_file():
            return folder / name
    latest = sorted({file.parent.name for name in names for file in RESULTS.glob(f"*/{name}")})[-5:]
    raise UsageError(
        f"resume={resume}: no {command} run there; the latest in {RESULTS}/ are: {', '.join(latest) or 'none'}"
    )


def sweep_file(command: str) -> str:
    """The name of the file with the arguments of a multirun."""
    return f"{command}.sweep.yaml"


def whole(run_folder: Path, command: str) -> Path:
    """The folder of the sweep that a run is a job of, or its own."""
    return next((folder for folder in run_folder.parents if (folder / sweep_file(command)).is_file()), run_folder)


def keep_sweep(arguments: Sequence[str], folder: Path, command: str) -> None:
    """Writes the arguments of a multirun, from which `resume=` starts those jobs that have not begun, and goes on with the others.

    Raises UsageError if they cannot be written, or if another sweep is kept there.
    """
    if (folder / sweep_file(command)).exists():
        raise UsageError(f"{folder} holds a sweep already: {shlex.quote(f'resume={folder}')} goes on with it")
    try:
        folder.mkdir(parents=True, exist_ok=True)  # one that was named
    except OSError as error:
        raise unwritable(folder, error) from error
    _write(folder / sweep_file(command), {"directory": str(Path.cwd()), "arguments": list(arguments)})


def load_sweep(file: Path) -> list[str]:
    """What `keep_sweep` wrote. Raises UsageError for a file that is not that, and in another directory than the sweep began in."""
    kept = load(file)
    arguments, directory = kept.get("arguments"), kept.get("directory")
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        raise UsageError(f"{file} holds no sweep: arguments is {arguments!r:.60}; expected a list of words")
    if Path(str(directory)) != Path.cwd():
        raise UsageError(
            f"resume={file.parent}: that sweep began in {directory}, from where its files are named: go on there"
        )
    return arguments


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
    """Writes the configuration, whole or not at all, with paths that hold wherever the run is resumed from, and of groups of keys, such as hundreds
    of tunables, those that are set.

    Raises UsageError if it cannot be written, or if another run is kept there.
    """
    if (folder / FILE).exists() or any(folder.glob("*.yaml")):
        goes_on = f"{shlex.quote(f'resume={folder}')} goes on with it"
        raise UsageError(f"{folder} holds a run already: {'expected another folder' if command in WHOLE else goes_on}")
    kept = {key: _set(value) for key, value in chosen.items()}
    kept |= {key: _absolute(chosen[key]) for key in ("path", "shapes")}
    _write(folder / f"{command}.yaml", kept)


def forget(folder: Path, command: str) -> None:
    """Takes the configuration away that `keep` wrote, of a run that was refused: `resume=latest` would take it for one to go on with."""
    if not (folder / FILE).exists():
        (folder / f"{command}.yaml").unlink(missing_ok=True)


def _write(file: Path, kept: Mapping[str, Any]) -> None:
    """Writes the file, whole or not at all. Raises UsageError if it cannot be written."""
    try:
        with atomic.replacing(file) as partial:
            partial.write_text(yaml.safe_dump(dict(kept), sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise unwritable(file.parent, error) from error


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
            raise unwritable(folder, error) from error
        yield


def check_free(folder: Path) -> None:
    """Raises UsageError if another process is at work in the folder. Makes nothing there."""
    if (folder / LOCK).exists():
        with held(folder):
            pass


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


def unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"results cannot be written to {folder}: {error.strerror or error}; nothing was measured")


def _set(value: Any) -> Any:
    """A value, of a group of keys without those that are not set."""
    return {name: _set(own) for name, own in value.items() if own is not None} if isinstance(value, dict) else value


def _absolute(value: Any) -> Any:
    if value is None:
        return None
    return [str(Path(p).resolve()) for p in value] if isinstance(value, list) else str(Path(value).resolve())
