"""Which cores the workers of a run compute on: runs that go on at one time on one machine take cores of their own."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO


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
