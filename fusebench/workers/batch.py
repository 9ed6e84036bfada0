"""Calls that another process times as a whole: their inputs are ready before its clock starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusebench.timing.samples import together
from fusebench.workers import protocol


class Batch:
    """Some calls of the cell in hand, and what they are going to get."""

    def __init__(self, backend: Any):
        self.backend = backend
        self.forget()

    def forget(self) -> None:
        self.call: Any = None
        self.waiting: Sequence[Sequence[Any]] = ()

    def make_ready(self, call: Any, ring: Any, calls: int) -> protocol.Ready:
        """Makes the inputs of as many calls as there is memory for."""
        self.call, self.waiting = call, [ring[number % len(ring)] for number in range(together(ring, calls))]
        self.backend.wait(self.waiting)
        return protocol.Ready(len(self.waiting))

    def run(self) -> protocol.Ran:
        """Makes the calls, once."""
        self.backend.wait([self.call(*arguments) for arguments in self.waiting])
        self.forget()
        return protocol.Ran()
