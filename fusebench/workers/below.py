"""A program below a tool, such as compute-sanitizer or ncu: it ends with its parent, and is ended with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import psutil

LOOK_S = 2.0  # how often it looks for its parent


def die_with_parent() -> None:
    """Has the system kill this process when the one that started it ends, however that ends, and wherever this one is then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def leave_to(own: int) -> None:
    """Ends this process if it is another: an implementation forked, and its child came back from the call."""
    if os.getpid() != own:
        os._exit(1)


def end_with(parent: int) -> None:
    """Has this process end by itself once its parent is gone: the tool between them does not pass that on."""
    threading.Thread(target=_look, args=(parent,), daemon=True).start()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the tool, its program and whatever these started and left, and waits for the tool. All are stopped first: what one of them
    starts while they are looked for would be found by nobody."""
    _signal_group(process, signal.SIGSTOP)
    family: set[psutil.Process] = set()
    with contextlib.suppress(psutil.Error):
        tool = psutil.Process(process.pid)
        while new := set(tool.children(recursive=True)) - family:  # also those that left the group
            for member in new:
                with contextlib.suppress(psutil.Error):
                    member.suspend()
            family |= new
    _signal_group(process, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _look(parent: int) -> None:
    while psutil.pid_exists(parent) and psutil.Process(parent).status() != psutil.STATUS_ZOMBIE:
        time.sleep(LOOK_S)
    os._exit(1)
