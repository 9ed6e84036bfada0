"""Rows elsewhere in each call: where they are independent, inputs are rolled along them by a random offset and two rows are exchanged,
and the output is put back before anybody looks at it. So no call can tell cheaply, by what stands first or where it lies, which
inputs it got and whether its output is going to be judged. All of it is outside the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fusebench.workers import late
from fusebench.workers.outputs import as_list


@dataclass(frozen=True)
class Move:
    """Rows rolled by `shift`, after which those of the numbers in `exchanged` change places, of `height`."""

    shift: int
    exchanged: tuple[int, int]
    height: int

    def back(self) -> Move:
        """The move that undoes it: rolled first as well, so that the rows to exchange stand elsewhere."""
        a, b = ((number - self.shift) % self.height for number in self.exchanged)
        return Move(-self.shift % self.height, (a, b), self.height)


class Mover:
    """Moves the rows of input sets: `inputs` are the axes of rows by the place of the argument, `outputs` those of the outputs in
    order, where one may stand for all."""

    def __init__(
        self, backend: Any, copied: frozenset[int], inputs: Mapping[int, int], outputs: Sequence[int], seed: int
    ):
        self.backend, self.copied, self.inputs, self.outputs = backend, copied, inputs, outputs
        self.rng = np.random.default_rng(seed)
        self.moves: dict[int, Move] = {}  # by the id of arguments: of those that live, each has its own

    def draw(self, arguments: Sequence[Any]) -> Move:
        """A move for rows as many as these arguments have."""
        place, axis = next(iter(self.inputs.items()))
        height = int(arguments[place].shape[axis])
        shift, a, b = (int(number) for number in self.rng.integers(0, height, 3))
        return Move(shift, (a, b), height)

    def move_of(self, arguments: Sequence[Any]) -> Move | None:
        """How the rows of arguments that still live were moved."""
        return self.moves.get(id(arguments))

    def place(self, arguments: Sequence[Any], move: Move | None = None) -> list[Any]:
        """Copies of those that no call may have seen, with their rows moved, by a fresh move unless one is given."""
        move = move or self.draw(arguments)
        placed = [  # a plain list: JAX waits for nothing in a class of one's own
            late.changed(a, partial(self._moved, axis=self.inputs[place], move=move))
            if place in self.inputs
            else late.copied(self.backend, a)
            if place in self.copied
            else a
            for place, a in enumerate(arguments)
        ]
        self.moves[id(placed)] = move
        return placed

    def restored(self, output: Any, move: Move) -> list[Any]:
        """The outputs of a call with their rows where they belong, in memory of their own; one without so many rows, which no
        right output is, as it is."""
        outputs, back = as_list(output), move.back()
        axes = [self.outputs[number if len(self.outputs) > 1 else 0] for number in range(len(outputs))]
        return [
            self._moved(o, axis, back) if _height(o, axis) == move.height else self.backend.copy(o)
            for o, axis in zip(outputs, axes, strict=True)
        ]

    def _moved(self, array: Any, axis: int, move: Move) -> Any:
        return self.backend.move_rows(array, axis, move.shift, move.exchanged)


def _height(array: Any, axis: int) -> int | None:
    shape = array.shape
    return int(shape[axis]) if -len(shape) <= axis < len(shape) else None
