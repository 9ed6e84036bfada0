"""Calls on the same inputs: do they give the same bits? Those that do not are kept, to be judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fusebench import draws
from fusebench.records.record import Spread
from fusebench.workers.outputs import as_list

# Of the outputs that differ, what the kept ones are the worst of: honest rounding of large elements is no less than a race that spoils small
# ones, which are far off as a share, or many. And one that is drawn.
RANKS = ("elements", "difference", "share", "drawn")


@dataclass(slots=True)
class Repeats:
    """The first output of each input set, by the set's number, and what later calls gave. Outputs are compared where they are,
    with copies: a call may write all of them to one buffer.

    Where a call's rows stood elsewhere than the first one's, its output has them where they belong again; a row may be rounded
    otherwise at another place, in a tile at the edge, so that such an output is judged, but is no spread unless another call with
    the same rows at the same places gives other bits."""

    backend: Any
    first: dict[int, list[Any]] = field(default_factory=dict)
    calls: int = 0
    # by what they are the worst of: the rank, the set and the output
    differing: dict[str, tuple[float, int, list[np.ndarray]]] = field(default_factory=dict)
    spread: Spread | None = None
    places: dict[int, Any] = field(default_factory=dict)  # of the rows of each set's first output
    elsewhere: tuple[int, Any, list[Any]] | None = None  # the last output that differs, of rows at other places

    def see(self, set_: int, output: Any, place: Any = None) -> bool:
        """Takes note of the output of a finished call on that set, whose rows stood at that place; whether it is the first one's, bit
        for bit."""
        outputs = as_list(output)
        if set_ not in self.first:
            self.first[set_], self.places[set_] = self._copies(outputs), place
            return True
        self.calls += 1
        first, before = self.first[set_], self._elsewhere(set_, place)
        if self._same(first, outputs):
            if before is not None:
                self._spread(*self._apart(first, before)[:2])
            return True
        if before is not None and self._same(before, outputs):
            return False
        elements, largest, share = self._apart(first, outputs)
        ranks = zip(RANKS, (elements, largest, share, draws.share()), strict=True)
        worst = {n: rank for n, rank in ranks if n not in self.differing or rank > self.differing[n][0]}
        if worst:
            got = [np.array(self.backend.get(o)) for o in outputs]
            self.differing |= {name: (rank, set_, got) for name, rank in worst.items()}
        if before is None and place != self.places[set_]:
            self.elsewhere = set_, place, self._copies(outputs)
        else:
            self._spread(elements, largest)
        return False

    def _elsewhere(self, set_: int, place: Any) -> list[Any] | None:
        known = self.elsewhere
        return known[2] if known is not None and known[:2] == (set_, place) else None

    def _copies(self, outputs: Sequence[Any]) -> list[Any]:
        copies = [self.backend.copy(o) for o in outputs]
        self.backend.wait(copies)
        return copies

    def _same(self, a: Sequence[Any], b: Sequence[Any]) -> bool:
        return len(a) == len(b) and all(map(self.backend.same, a, b))

    def _apart(self, first: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, float, float]:
        """How many elements differ, and the largest difference, also as a share; infinite between outputs of another number or shape."""
        if [o.shape for o in first] != [o.shape for o in outputs]:
            return max(sum(math.prod(o.shape) for o in some) for some in (first, outputs)), math.inf, math.inf
        elements, differences, shares = zip((0, 0.0, 0.0), *map(self.backend.apart, first, outputs), strict=True)
        return sum(elements), max(differences), max(shares)

    def _spread(self, elements: int, largest: float) -> None:
        before = self.spread or Spread(0, 0.0, 0, self.calls)
        found = max(before.elements, elements), max(before.max_abs, largest)
        self.spread = Spread(*found, before.calls + 1, self.calls)

    def found(self) -> Spread | None:
        """How far outputs were apart, or None where all calls gave the same."""
        return self.spread and replace(self.spread, of=self.calls)

    def take(self) -> list[tuple[int, list[np.ndarray]]]:
        """The kept outputs that differ, with their sets, once."""
        kept = {id(outputs): (set_, outputs) for _, set_, outputs in self.differing.values()}
        self.differing = {}
        return list(kept.values())
