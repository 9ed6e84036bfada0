"""Calls that another process times as a whole: their inputs are ready before its clock starts, and are none that a call has seen, not
even a row of them, so that a call that remembers rows has to compute them here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fusebench.timing.samples import Ring, together
from fusebench.workers import protocol


class CallBatch:
    """Some calls of the cell in hand, and what they are going to get."""

    def __init__(self, backend: Any):
        self.backend = backend
        self.forget()

    def forget(self) -> None:
        self.call: Any = None
        self.waiting: Sequence[Sequence[Any]] = ()

    def make_ready(self, call: Any, ring: Any, calls: int) -> protocol.Ready:
        """Makes the inputs of as many calls as there is memory for."""
        fresh = replace(ring, place=self._scaled(ring))
        self.call, self.waiting = call, [fresh[number % len(ring)] for number in range(together(ring, calls))]
        self.backend.wait(self.waiting)
        return protocol.Ready(len(self.waiting))

    def _scaled(self, ring: Ring) -> Callable[[Sequence[Any]], list[Any]]:
        """What places a set as the ring does, its floats times a number between one half and one."""

        def place(own: Sequence[Any]) -> list[Any]:
            factor = 0.5 + secrets.randbelow(2**20) / 2**21
            return [self.backend.scaled(a, factor) if n in ring.copied else a for n, a in enumerate(ring.placed(own))]

        return place

    def run(self) -> protocol.Ran:
        """Makes the calls, once."""
        self.backend.wait([self.call(*arguments) for arguments in self.waiting])
        self.forget()
        return protocol.Ran()
