"""Calls that another process times as a whole: their inputs are ready before its clock starts, and are none that a call has seen, not
even a row of them, so that a call that remembers rows has to compute them here. One of them, which is drawn, gets a set of its own, and
what it returns is judged: to compute nothing where nothing is known does not help either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fusebench import draws
from fusebench.timing.samples import Ring, together
from fusebench.workers import late, protocol


class CallBatch:
    """Some calls of the cell in hand, and what they are going to get. `taken` makes copies of an output, or says what is wrong with it."""

    def __init__(self, backend: Any, taken: Callable[[Sequence[Any], Any], tuple[str | None, list[Any]]]):
        self.backend, self.taken = backend, taken
        self.forget()

    def forget(self) -> None:
        self.call: Any = None
        self.waiting: Sequence[Sequence[Any]] = ()
        self.drawn = 0  # the number of the call on the unseen set
        self.unseen: tuple[str | None, list[Any]] = None, []  # what was taken of its output

    def make_ready(self, call: Any, ring: Ring, calls: int, unseen: Mapping[int, Any]) -> protocol.Ready:
        """Makes the inputs of as many calls as there is memory for; `unseen` are those of one more set, by their places."""
        count, mixed = together(ring, calls), replace(ring, place=self._mixed(ring, unseen))
        first = replace(ring, sets=[[unseen.get(place, a) for place, a in enumerate(ring.sets[0])]], place=None)
        self.call, self.drawn = call, draws.below(count)
        waiting = [[] if n == self.drawn else mixed[n % len(ring)] for n in range(count)]
        waiting[self.drawn] = first[0]  # the last: while forward calls run, no upstream gradient of that set is there
        self.waiting = waiting
        self.backend.wait(self.waiting)
        return protocol.Ready(count)

    def _mixed(self, ring: Ring, unseen: Mapping[int, Any]) -> Callable[[Sequence[Any]], list[Any]]:
        """What places a set as the ring does, with the unseen set in its floats: of each call another share of up to a half, so that nothing
        is left that another call had, such as the signs."""

        def mix(other: Any, share: float, a: Any) -> Any:
            if isinstance(other, late.Late):  # a share of its own, drawn when forward has returned
                share = 0.5 + draws.share() / 2
            return self.backend.mixed(a, late.made(other), share)

        def place(own: Sequence[Any]) -> list[Any]:
            share = 0.5 + draws.share() / 2
            placed = ring.placed(own)
            return [late.changed(a, partial(mix, unseen[n], share)) if n in unseen else a for n, a in enumerate(placed)]

        return place

    def run(self) -> protocol.Ran:
        """Makes the calls, once. Outputs are dropped as those of samples are: if all were kept, each would be in memory that is new to the
        process, whose pages take longer than a short call."""
        for number, arguments in enumerate(self.waiting):
            output = self.call(*arguments)
            self.backend.wait([output])
            if number == self.drawn:
                self.unseen = self.taken(arguments, output)
        self.call, self.waiting = None, ()
        return protocol.Ran()
