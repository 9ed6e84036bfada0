"""What the calls of a cell get: which arrays all of them share and which are copied for each, where rows stand, and whether a call
altered what it must leave alone.

It tells arguments of one call from those of another. What a call returns is held against others in repeats.py.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebench import inputs, modes
from fusebench.contract import Device
from fusebench.timing.samples import Ring
from fusebench.workers import calls, late, outputs, protocol
from fusebench.workers.rows import Move, Mover

ALTERED = "an array that the harness copies and compares has become {}, expected a plain one of the framework"


class Arguments:
    """Of the cell in hand; none before `load`. The ring has its input sets, each with the weights and with what `prepare` made."""

    def __init__(self, backend: Any, device: Device, prepare: Callable[..., Any] = lambda *_: ()):
        self.backend, self.device, self.prepare = backend, device, prepare
        self.ring = Ring([], frozenset(), backend.copy)
        self.places = calls.Places(0)
        self.late = range(0)  # places of those that are made when forward has returned
        self.varying: Sequence[int] = ()  # places of those that differ from set to set
        self.unchanged: list[int] = []  # places of those that a call must leave alone
        self.kept: dict[int, Any] = {}  # by place, copies of what all calls are given: weights, and what was prepared
        self.numbers: Sequence[int] = ()  # of the sets in the ring
        self.mover: Mover | None = None  # where rows may stand in any order
        self.last_move: Move | None = None

    def load(self, asked: protocol.BuildCell, in_place: Sequence[int]) -> float:
        """Loads the input sets, and calls `prepare`: its seconds. A call may overwrite what is `in_place`."""
        backend, folder = self.backend, Path(asked.folder)
        upstream = modes.count_upstream(asked.names)
        self.places = calls.Places(len(asked.names) - upstream, upstream)
        self.late = range(self.places.inputs, len(asked.names)) if asked.case.mode == "backward" else range(0)
        masks: late.Masks = {}
        behind = {files[place] for files in asked.sets for place in self.late}
        arrays = {
            f: self._put(inputs.load([f], folder)[0], masks if f in behind else None)
            for f in {f for s in asked.sets for f in s}
        }
        stored = [[arrays[file] for file in files] for files in asked.sets]
        self.varying = [place for place, files in enumerate(zip(*asked.sets, strict=True)) if files[0] != files[-1]]
        copied = frozenset([*self.varying, *in_place, *self.late])
        self.kept = {place: late.copied(backend, a) for place, a in enumerate(stored[0])}  # before prepare sees them
        # what calls get copies of, prepare gets a copy of, too: what it makes of an array is not to be found in theirs
        given = [backend.copy(a) if place in copied else a for place, a in enumerate(self.places.own(stored[0]))]
        backend.wait([*arrays.values(), *self.kept.values(), given])
        begin = time.perf_counter()
        prepared = calls.prepared(self.prepare(*given))
        backend.wait(prepared)
        prepare_s = time.perf_counter() - begin
        self.places = replace(self.places, prepared=len(prepared))
        self.ring = Ring([[*s, *prepared] for s in stored], copied, functools.partial(late.copied, backend))
        self.numbers = range(len(stored))
        self.unchanged = [place for place in range(len(stored[0]) + len(prepared)) if place not in in_place]
        return prepare_s

    def first(self) -> tuple[list[Any], list[Any]]:
        """Arguments of the first call, and what they are before it."""
        arguments, prepared = self.ring[0], self.ring.sets[0][len(self.kept) :]
        before = [*self.kept.values(), *map(self.backend.copy, prepared)]
        self.kept = {place: a for place, a in enumerate(before) if place not in self.ring.copied}
        self.backend.wait([arguments, before])
        return arguments, before

    def of(self, number: int, again: bool = False) -> list[Any]:
        """Arguments of a call on that set of the ring, `again` with their rows where those of the last ones were."""
        if self.mover is None:
            return self.ring[number]
        arguments = self.mover.place(self.ring.sets[number], self.last_move if again else None)
        self.last_move = self.mover.move_of(arguments)
        return self.ring.made_ready(arguments)

    def overwrite(self, arguments: list[Any], number: int) -> None:
        """Writes that set over what those arguments have copies of, in the same memory."""
        others: Sequence[Any] = self.of(number) if self.mover else self.ring.sets[number]
        for place in sorted(self.ring.copied):
            arguments[place] = late.changed(others[place], functools.partial(self.backend.overwrite, arguments[place]))
        self.ring.made_ready(arguments)
        if self.mover and (move := self.mover.move_of(others)):
            self.mover.moves[id(arguments)] = move

    def of_files(self, files: Sequence[inputs.Stored], folder: Path) -> list[Any]:
        """Arguments of a call on other inputs and weights. These are written over the cell's where arrays can be, as an optimizer does, until
        `restore`: a copy that was kept of them is told by no new array. `prepare` sees the first set's inputs beside the new weights, as all sets
        have what was made beside them: it could compute there what the call is asked for."""
        arguments = [self.backend.put(a, self.device) for a in inputs.load(files, folder)]
        for place in self._weights():
            arguments[place] = self.backend.overwrite(self.ring.sets[0][place], arguments[place])
        first = self.ring.sets[0]
        given = [
            self.backend.copy(first[place]) if place in self.varying else a
            for place, a in enumerate(self.places.own(arguments))
        ]
        arguments = self.ring.made_ready([*arguments, *self.prepare(*given)])
        self.backend.wait(arguments)
        return arguments

    def restore(self) -> None:
        """Gives the cell its weights back."""
        for place in self._weights():
            self.backend.overwrite(self.ring.sets[0][place], self.kept[place])

    def _weights(self) -> list[int]:
        """The places of what all calls are given and another call may be given anew in the same memory."""
        return [place for place in self.kept if place < self.places.inputs] if self.backend.MUTABLE else []

    def unseen(self, files: Sequence[inputs.Stored], folder: Path) -> dict[int, Any]:
        """By place, what differs from set to set, of the set in those files."""
        places = [place for place in sorted(self.ring.copied) if place < len(files)]
        loaded = inputs.load([files[place] for place in places], folder)
        masks: late.Masks = {}
        return {
            place: self._put(a, masks if place in self.late else None) for place, a in zip(places, loaded, strict=True)
        }

    def _put(self, array: np.ndarray, masks: late.Masks | None) -> Any:
        """The array on the device; with masks in a form that says nothing."""
        if masks is None:
            return self.backend.put(array, self.device)
        return late.hide(self.backend, self.device, array, masks)

    def move_rows(self, rows: protocol.MoveRows) -> None:
        """From now on each call gets its rows in another order, of the first set or the last one. Both are judged, and any of the
        timed calls may be."""
        if not set(rows.inputs) <= self.ring.copied:
            return
        self.mover = Mover(self.backend, self.ring.copied, rows.inputs, rows.outputs, rows.seed)
        sets, self.numbers = [self.ring.sets[0], self.ring.sets[-1]], (0, len(self.ring) - 1)
        kept = int(self.mover.rng.integers(0, 2))
        self.ring = replace(self.ring, sets=sets, place=self.mover.place, kept=kept)

    def move_of(self, arguments: Sequence[Any]) -> Move | None:
        """How the rows of those arguments were moved."""
        return self.mover.move_of(arguments) if self.mover else None

    def in_order(self, output: Any, arguments: Sequence[Any]) -> list[Any]:
        """Copies of the outputs of a call on those arguments, with their rows where they belong."""
        if self.mover is not None and (move := self.mover.move_of(arguments)) is not None:
            return self.mover.restored(output, move)
        return [self.backend.copy(o) for o in outputs.as_list(output)]

    def memory(self, arguments: Sequence[Any]) -> outputs.Spans:
        """Where those of the inputs are that a call must leave alone."""
        return [self.backend.memory(arguments[place]) for place in self.unchanged if place < self.places.inputs]

    def altered(self, compared: Iterable[Sequence[Any]]) -> str | None:
        """What an implementation made of an array of the harness, which is none of the framework's own any more, or None: of the sets, which are
        copied for each call, of what they are compared with, and of what outputs are. All that is outside of every clock, where a class of
        its own could compute."""
        found = (self.altered_of(own, range(len(own))) for own in (*self.ring.sets, *compared))
        return next(filter(None, found), None) or self.altered_of(self.kept, list(self.kept))

    def altered_of(self, arrays: Sequence[Any] | Mapping[int, Any], places: Sequence[int] | None = None) -> str | None:
        """The same of arguments, but for those that a call may overwrite or take."""
        for place in self.unchanged if places is None else places:
            altered = (outputs.altered(self.backend, a, self.device) for a in late.parts(arrays[place]))
            if found := next(filter(None, altered), None):
                return ALTERED.format(found)
        return None

    def changed(self, arguments: Sequence[Any], before: Sequence[Any]) -> str:
        """Which argument a call changed that it must leave alone, or ""."""
        for place in self.unchanged:
            if not self.backend.same(arguments[place], late.made(before[place])):
                return f"its argument {place}"
        return ""

    def changed_timed(self, number: int, arguments: Sequence[Any]) -> str:
        """Which argument of a timed call on that set of the ring was changed, or ""."""
        own: Sequence[Any] = self.ring.sets[number]
        if self.mover is not None and (move := self.mover.move_of(arguments)) is not None:
            own = self.mover.place(own, move)
        return self.changed(arguments, [self.kept.get(place, a) for place, a in enumerate(own)])

    def changed_shared(self) -> str:
        """Which of the arrays that all calls are given was changed, or ""."""
        own = self.ring.sets[0]
        changed = (place for place, a in self.kept.items() if not self.backend.same(own[place], a))
        return next((f"its argument {place}" for place in changed), "")
