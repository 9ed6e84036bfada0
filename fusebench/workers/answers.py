"""What a worker answers when an implementation goes wrong: one line, and whether the worker can go on."""

from __future__ import annotations

import bdb
import errno
import gc
import os
import shutil
import tempfile
import traceback
from pathlib import Path
from typing import Any

import msgspec

from fusebench import sources
from fusebench.errors import StorageError, cause
from fusebench.timing.cupti import LostRecords
from fusebench.workers import outputs, protocol

FULL_BYTES = 64 * 2**20  # a disk with less than this has no room for a compiler's work
NO_SPACE = os.strerror(errno.ENOSPC)


def answer(bench: Any, request: protocol.Request) -> protocol.Message:
    """Does what a message asks; an exception of the implementation's becomes `failed`, with its last lines.

    After an illegal memory access nothing more runs on the device in this process: then the answer is `fatal`. A full disk
    is nobody's fault: the answer is `storage`.
    """
    try:
        return bench.do(request)
    except outputs.Unfit as unfit:
        return protocol.Refused("failed", str(unfit))
    except KeyboardInterrupt:  # the user's, in an inline worker
        raise
    except BaseException as error:  # an implementation may raise anything; the cell fails, the worker lives
        failed = describe(error)
        full = NO_SPACE in failed.traceback and _is_full(getattr(request, "folder", "."))
        if isinstance(error, StorageError) or full:
            return protocol.Refused("storage", failed.reason)
        lost = isinstance(error, LostRecords)
    return msgspec.structs.replace(failed, fatal=not _usable(bench), again=lost)


def _usable(bench: Any) -> bool:
    """Whether the device still works, once it has its memory back: one that is merely full is not lost."""
    gc.collect()  # what stood in the traceback's frames may hold some
    try:
        bench.release()
    except Exception:  # each framework has an error of its own for a lost device
        return False
    return bool(bench.usable())


def _is_full(folder: str) -> bool:
    """Whether a disk is full that compilers and their caches write to, or the run's."""
    places = [p for p in (folder, tempfile.gettempdir(), Path.home()) if Path(p).is_dir()]
    return any(shutil.disk_usage(place).free < FULL_BYTES for place in places)


def describe(error: BaseException) -> protocol.Refused:
    """`failed` with one line that names the error and the line of `implementations` that led to it, and the end of the traceback."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"at {Path(where.filename).name}:{where.lineno}"
    if isinstance(error, MemoryError):  # Python's own says nothing
        place = f"the host's memory is full, {place}"
    try:
        message, text = cause(error), "".join(traceback.format_exception(error))
    except Exception as second:  # its own words for itself may fail as well
        message, text = f"it cannot say what it is: {type(second).__name__}", ""
    message, text = ((words.encode(errors="replace").decode()) for words in (message, text))
    message = message or place
    own = f" (at {found})" if (found := sources.place(error)) else ""
    if isinstance(error, bdb.BdbQuit):
        message = "the debugger was left, or found no terminal, which workers do not have: worker=inline runs all in this process"
    return protocol.Refused("failed", f"{type(error).__name__}: {message}"[:500] + own, text[-8000:])
