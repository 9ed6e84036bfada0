"""Which cores the workers of a run compute on: runs that go on at one time on one machine take cores of their own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from fusebench.errors import UsageError


class Cores:
    """`count` of the cores that this process may use, those first that no other run has taken. `release` gives them back; so
    does the end of the process."""

    def __init__(self, count: int):
        self.locks: list[TextIO] = []
        self.numbers = self._take(sorted(os.sched_getaffinity(0)), count)

    def _take(self, ours: Sequence[int], count: int) -> list[int]:
        if count >= len(ours):
            return list(ours)
        taken: list[int] = []
        for core in ours:
            if len(taken) < count and self._lock(core):
                taken.append(core)
        return sorted([*taken, *[core for core in ours if core not in taken][: count - len(taken)]])

    def _lock(self, core: int) -> bool:
        """Whether the core was free, and is ours now."""
        try:
            lock = Path(tempfile.gettempdir(), f"fusebench-core-{core}.lock").open("a")  # noqa: SIM115
        except OSError:  # another user's
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self.locks.append(lock)
        return True

    def release(self) -> None:
        for lock in self.locks:
            lock.close()
        self.locks.clear()


@contextlib.contextmanager
def confined(count: int | None) -> Iterator[None]:
    """This process, with all its threads, on `count` cores, and Torch with as many threads; None leaves it as it is. Pools that have
    started already, such as those of XLA and NumPy's BLAS, keep their threads: these share the cores."""
    if count is None:
        yield
        return
    torch = sys.modules.get("torch")
    computing = torch and torch.get_num_threads()
    ours = os.sched_getaffinity(0)
    before = {}
    for task in _tasks():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            before[task] = os.sched_getaffinity(task)
    cores = Cores(count)
    try:
        for task in before:
            _move(task, cores.numbers)
        if torch:
            torch.set_num_threads(count)
        yield
    finally:
        for task in _tasks():  # also those that began on our cores
            _move(task, before.get(task, ours))
        if torch:
            torch.set_num_threads(computing)
        cores.release()


def _tasks() -> list[int]:
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


def _move(task: int, cores: Iterable[int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.sched_setaffinity(task, cores)


def check_threads(value: int | str | None) -> int | None:
    """The number of threads, or None for one for each core. Raises UsageError for more than there are cores, or for none."""
    cores = len(os.sched_getaffinity(0))
    if value in (None, "null"):
        return None
    if not str(value).isdecimal() or not 1 <= int(value) <= cores:
        raise UsageError(f"threads is {value}: expected a number from 1 to {cores}, the cores that are ours here")
    return int(value)
