"""What the judge looks at in a case, in one class for each way of looking: `All` of it, some `Rows` of a large case, some `Slices`
where these stand for rows, or some `Elements` of outputs that sum over all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fusebench import modes
from fusebench.contract import Case, Mathematics
from fusebench.parity import rows

JUDGED_FLOPS, JUDGED_ELEMENTS = 2.5e8, 4e5  # what of a case the judge sees itself: rows are chosen beyond
CPU_FLOPS, CPU_ELEMENTS = 1e10, 4e6  # what of a case the reference on a CPU sees: rows are chosen beyond
DRAWN_ELEMENTS = 4e5  # of an output that is drawn from, because the formula needs all rows
WHOLE_ELEMENTS = 3e8  # of all outputs of such a formula, which a GPU compares in one go: some 60 GB of its memory
FEWEST_ROWS, UNLIKE_ROWS = 8, 8
# Of slices, each of which is a case of its own: the first, and one that nobody knows before; of those that are unlike the others one.
FEWEST_SLICES, UNLIKE_SLICES = 2, 1

Shape = tuple[int, ...]


def oversize(mathematics: Mathematics, case: Case) -> float:
    """How many times what the judge sees of a case itself it has; beyond 1 the reference on the device sees the rest."""
    flops, moved = mathematics.flops(case), mathematics.moved_bytes(case)
    return max(flops / JUDGED_FLOPS, moved / case.itemsize / JUDGED_ELEMENTS)


@dataclass(frozen=True)
class All:
    """All of a case that is `times` what the judge sees itself, by the `mathematics` of its mode. `shapes_of` returns those of its outputs;
    `seed` decides what is looked at where that is not all."""

    mathematics: Mathematics
    arrays: Mapping[str, np.ndarray]
    times: float
    seed: int
    shapes_of: Callable[[], Sequence[Shape]]

    named: ClassVar[str] = "rows"
    fewest: ClassVar[int] = FEWEST_ROWS
    unlike: ClassVar[int] = UNLIKE_ROWS  # of those that differ most from the others how many are looked at besides
    some: ClassVar[bool] = False  # whether the formula is evaluated for some rows, and told their numbers
    sliced: ClassVar[bool] = False

    @property
    def judged(self) -> np.ndarray | None:
        """The rows, or slices, of which the judge makes the budgets; None for all."""
        return None

    @property
    def most(self) -> Mapping[int, tuple[int, int]]:
        """Of each output that is drawn from, by its number, the axis along which, and how many of its numbers."""
        return {}

    @property
    def whole(self) -> bool:
        """Whether the reference on the device evaluates the formula at once, and the judge sees what is drawn of it."""
        return False

    @cached_property
    def row_axes(self) -> list[int | None]:
        """Those of the rows of the inputs."""
        return [self.mathematics.rows.get(name) for name in self.arrays]

    @cached_property
    def height(self) -> int:
        """How many rows the inputs have, 0 where they have none."""
        given = zip(self.arrays.values(), self.row_axes, strict=True)
        return next((a.shape[axis] for a, axis in given if axis is not None), 0)

    @cached_property
    def shapes(self) -> Sequence[Shape]:
        return self.shapes_of()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of the judged rows."""
        return () if self.judged is None else tuple(map(int, self.judged))

    def axis(self, number: int) -> int:
        """The axis of the rows of output `number`, of a case of which some rows are judged."""
        axis = self.mathematics.output_axis(number, self.arrays)
        assert axis is not None
        return axis

    def along(self, number: int) -> int:
        """The axis by which output `number` is looked at: of rows, or that which is drawn from."""
        return self.mathematics.output_axis(number, self.arrays) or 0

    def judged_places(self, number: int) -> dict[int, np.ndarray]:
        """The axis of the judged rows of output `number`, with these."""
        return {} if self.judged is None else {self.axis(number): self.judged}

    def length(self, number: int, axis: int) -> int:
        """Of the whole output `number` along an axis of which some numbers are judged."""
        return self.shapes[number][axis]

    def within(self, *excess: float) -> int | None:
        """How many rows to look at where the whole is that many times what fits, or None for all."""
        fit = max(self.fewest, int(self.height / max(1.0, *excess)))
        return None if fit >= self.height else fit

    def on_cpu(self, case: Case) -> tuple[int, ...] | None:
        """The rows that the reference on a CPU sees in a second or two, None for all."""
        flops, moved = self.mathematics.flops(case), self.mathematics.moved_bytes(case)
        most = self.within(flops / CPU_FLOPS, moved / case.itemsize / CPU_ELEMENTS)
        return None if most is None else tuple(map(int, rows.chosen(self.height, most, self.seed + 1)))

    def unlike_others(self, outputs: Sequence[np.ndarray]) -> tuple[int, ...]:
        """Those of the rows that look unlike the others."""
        return tuple(r for n, output in enumerate(outputs) for r in rows.suspicious(output, self.axis(n), self.unlike))


@dataclass(frozen=True)
class Rows(All):
    """Some rows, which the formula evaluates without the others."""

    some: ClassVar[bool] = True

    @cached_property
    def judged(self) -> np.ndarray:
        return rows.chosen(self.height, self.within(self.times) or self.height, self.seed)

    def length(self, number: int, axis: int) -> int:
        return self.height


@dataclass(frozen=True)
class Slices(All):
    """Some slices, in each of which the formula has all rows, and of large outputs some elements of these: the mathematics has slices for
    rows."""

    named: ClassVar[str] = "slices"
    fewest: ClassVar[int] = FEWEST_SLICES
    unlike: ClassVar[int] = UNLIKE_SLICES
    sliced: ClassVar[bool] = True

    @cached_property
    def judged(self) -> np.ndarray:
        return rows.chosen(self.height, self.within(self.times) or self.height, self.seed)

    @cached_property
    def most(self) -> Mapping[int, tuple[int, int]]:
        """All elements are compared: the judge needs no more than of rows, of all outputs together."""
        given = [(shape, self.axis(n), len(self.judged)) for n, shape in enumerate(self.shapes)]
        return _drawn_from(given, DRAWN_ELEMENTS / len(given))


@dataclass(frozen=True)
class Elements(All):
    """Some elements of each large output, because some output sums over all rows: none can be left out."""

    @cached_property
    def most(self) -> Mapping[int, tuple[int, int]]:
        return _drawn_from([(shape, 0, 0) for shape in self.shapes], DRAWN_ELEMENTS)

    @property
    def whole(self) -> bool:
        return bool(self.most)

    def along(self, number: int) -> int:
        return self.most.get(number, (0, 0))[0] if self.most else super().along(number)


def of(
    mathematics: Mathematics, case: Case, arrays: Mapping[str, np.ndarray], seed: int, shapes_of: Callable[[], Sequence[Shape]]
) -> All:  # fmt: skip
    """What is looked at in the case, whose mode that mathematics has. Raises ValueError for an axis of ROWS that an input does not have."""
    for name, array in arrays.items():
        check_axis(name, mathematics.rows.get(name), array.shape)
    times = oversize(mathematics, case)
    sums = any(mathematics.output_axis(n, arrays) is None for n in range(len(mathematics.outputs)))
    whole = All(mathematics, arrays, times, seed, shapes_of)
    if times <= 1 or not (sums or whole.within(times)):
        return whole
    if not sums:
        return Rows(mathematics, arrays, times, seed, shapes_of)
    if modes.slices(mathematics, arrays) > 1:
        return Slices(modes.sliced(mathematics, arrays), arrays, times, seed, shapes_of)
    return Elements(mathematics, arrays, times, seed, shapes_of)


def check_axis(name: str, axis: int | None, shape: Shape) -> None:
    """Raises ValueError where an array of that name, an input or an output, has no such axis."""
    if axis is not None and not -len(shape) <= axis < len(shape):
        expected = " or ".join(map(str, range(len(shape)))) or "no rows of a single number"
        raise ValueError(f"ROWS of kernel.py has axis {axis} of {name}, whose shape is {shape}: expected {expected}")


def _drawn_from(given: Sequence[tuple[Shape, int, int]], elements: float) -> dict[int, tuple[int, int]]:
    """Of each large output the longest axis before the last that has no slices, and along it how many numbers are looked at."""
    found = ((n, rows.drawn_from(*one, elements, FEWEST_ROWS)) for n, one in enumerate(given))
    return {number: most for number, most in found if most is not None}
