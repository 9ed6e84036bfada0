"""What rounding may do to a formula, drawn at random: Monte Carlo arithmetic (Parker 1997). Inputs are exact and never perturbed: an
ill-conditioned case would accept anything. docs/numerics.md derives each size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from fusebench.contract import Case
from fusebench.dtypes import FORMATS
from fusebench.parity.elements import (
    centred,
    deviation_of_sum,
    drawn_on_gpu,
    finite,
    hadamard,
    larger,
    moved,
    spacing,
    stored,
    sum_of_squares,
    summed,
    tf32_size,
    variance_of_sum,
)  # fmt: skip
from fusebench.parity.rounding import COMPUTED, FAST_VARIANCE, FLUSHED, FUNCTION_SPACINGS, HALF_SUMS, Exact
from fusebench.parity.sums import mean_of_partial_sums, of_segments, partial_sums, repeated, variance_in_lanes

# Tensor cores read the upper 19 bits of a float32: unless a program rounds first, that truncates towards zero (seen on an
# H200: Triton's products come out up to 2^-10 smaller, cuBLAS's do not).
TF32_TRUNCATION = 2.0**-10
# Tensor cores align the products of one instruction, 8 or more of K, to the largest and cut off what hangs over, instead of
# rounding each sum (Fasi, Higham, Mikaitis, Pranesh 2021).
TENSOR_CORE_UNIT, TENSOR_CORE_STEP = 2.0**-22, 8
# A tensor core rounds a float16 accumulator to nearest after each instruction, which has 8 of K or more.
HALF_UNIT, HALF_LARGEST, HALF_LOST = 2.0**-11, 65504.0, 2.0**-25
STEP_UNITS = 4.0  # spacings of a sum's terms by which it may be off where it is compared with 0
OPENED_UNITS = 0.25  # of these, how far it then is above 0


class Noisy(Exact):
    """Draws of the rounding that a program with the declared points does, one after the other: `next_draw` begins each.

    Noise has a part of its own in each element. Where a program may truncate, or approximate a function, it errs the same way
    everywhere, so there all elements of a point share a second part; `+`, `×` and storing are rounded correctly and have
    none. What a whole row or output shares would scatter from few draws, and no neighbour would tell: such noise is balanced
    over the `draws` (4, 8 or 16), which then have exactly its variance.

    `random` is NumPy's generator, or one with its `random` and `standard_normal` for arrays elsewhere.
    """

    def __init__(
        self, case: Case, points: Collection[str], random: Any, chosen: np.ndarray | None = None, draws: int = 16
    ):
        super().__init__(chosen)
        self.points, self.random, self.dtype = frozenset(points), random, case.dtype
        self.tensor_cores = case.dtype != "float32" or case.precision == "tf32"
        self.tf32 = case.precision == "tf32"
        self.draws, self.draw = draws, -1
        self.kept: list[Any] = []  # what all draws share, in the order of the formula
        self.next_draw()

    def next_draw(self) -> Noisy:
        """Begins another draw; the sizes of the noise, which noise changes to second order, are kept."""
        self.draw = (self.draw + 1) % self.draws
        self.uses = self.balanced = 0
        # a program that cuts off does so in every product: from layer to layer the loss adds up
        self.towards_zero = 2 * self._balanced(())
        return self

    def once(self, make: Callable[[], Any]) -> Any:
        """What `make` returned in the first draw at this place of the formula."""
        if self.uses == len(self.kept):
            self.kept.append(make())
        self.uses += 1
        return self.kept[self.uses - 1]

    def _balanced(self, shape: tuple[int, ...]) -> Any:
        """Noise in [-1/2, 1/2] whose mean square over all draws is exactly 1/12, that of a uniform number, and whose products
        with the balanced noise of another place have the mean 0, or nearly.

        In each draw its size is another of as many steps, in an order of its own; its sign is by a column of a Hadamard
        matrix, which is another for each place and each row, and one of its own.
        """

        def begin() -> Any:
            random = self.random if shape else getattr(self.random, "host", self.random)
            at = random.random(shape or (1,), np.float32)
            order = np.floor(at * self.draws)
            row = np.arange(math.prod(shape)).reshape(shape or (1,)) + 0 * order  # where the noise is
            return order, np.where(at * self.draws - order < 0.5, -1.0, 1.0), row

        order, sign, row = self.once(begin)
        place, turn = self.balanced, self.balanced // (self.draws - 1)
        self.balanced += 1
        size = (np.remainder(order + self.draw, self.draws) + 0.5) / math.sqrt(4 * self.draws**2 - 1)
        column = 1 + np.remainder(row + place, self.draws - 1)
        noise = size * sign * hadamard((self.draw + 5 * turn) % self.draws, column)
        return noise if shape else noise[0]

    def _uniform(self, value: np.ndarray, shared: Any = 0.0) -> np.ndarray:
        """In [-1/2, 1/2), for each element of the value, and what all of them share."""
        if _of_rows(value):
            return self._balanced(np.shape(value)) + shared
        return centred(self.random, np.shape(value), shared)

    def _normal(self, value: np.ndarray) -> np.ndarray:
        """Of variance 1, for each element of the value."""
        if _of_rows(value):
            return math.sqrt(12) * self._balanced(np.shape(value))
        return self.random.standard_normal(np.shape(value), np.float32)

    def _noise(
        self, value: np.ndarray, dtype: str, spacings: float = 1.0, shared: Any = 0.0, each: bool = False
    ) -> tuple[np.ndarray, bool]:
        """The value with noise of so many spacings of the dtype, and what all elements share; and whether that may take something
        finite beyond the largest number. The spacings are those of the value in the first draw, or in `each`: just above a power of 2 they
        are twice those just below, and noise may take the value to either side."""

        def begin() -> tuple[Any, bool]:
            size, (mantissa, _, highest) = spacing(value, dtype, spacings), FORMATS[dtype]
            # a spacing is that of a power of 2, which the value may be twice, and a draw twice the value
            return size, bool(np.max(size, initial=0.0) > highest / 4 * (spacings * 2.0**-mantissa))

        size, near_overflow = self.once(begin)
        if each and self.draw:
            size = spacing(value, dtype, spacings)
        return moved(value, size, self._uniform(value, shared)), near_overflow

    def _flushed(self, value: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """What is `kept` of a value where the program flushes subnormals: those that it reads as well as those that it makes."""
        return np.where(np.abs(value) < 2.0**-126, 0.0, kept) if FLUSHED in self.points else kept

    def compute(self, value: np.ndarray, spacings: float = 1.0, shared: Any = 0.0) -> np.ndarray:
        if _in_one_pass(value):
            drawn = drawn_on_gpu("computed", value, self._uniform(value, shared), "float32", spacings)
        else:
            drawn, near_overflow = self._noise(value, "float32", spacings, shared)
            if near_overflow:
                drawn = np.where(np.abs(drawn) > FORMATS["float32"][2], np.copysign(np.inf, drawn), drawn)
        return self._flushed(value, drawn)

    def function(self, value: np.ndarray, spacings: float = FUNCTION_SPACINGS) -> np.ndarray:
        return self.compute(value, spacings, self._balanced(()))

    def round(self, point: str, value: np.ndarray) -> np.ndarray:
        if point not in self.points:
            return self.compute(value)
        if _in_one_pass(value):
            return drawn_on_gpu("rounded", value, self._uniform(value), self.dtype)
        drawn, near_overflow = self._noise(value, self.dtype, each=True)
        if near_overflow:
            drawn = np.where(np.abs(value) > FORMATS[self.dtype][2], stored(value, self.dtype), drawn)
        same = self.once(
            lambda: stored(value, self.dtype) == value
        )  # as of a sum that relu lets through: nothing rounds
        return np.where(same, value, drawn)

    def narrow(self, point: str, value: np.ndarray) -> np.ndarray:
        return self.round(point, value) if point in self.points else value

    def positive(self, value: np.ndarray, size: np.ndarray) -> np.ndarray:
        # a step that noise crosses in one draw of a hundred would be missed: where rounding may cross it, half of the draws do
        open_ = (np.abs(value) <= STEP_UNITS * self._unit * size) & (size > 0)
        above = (value > 0) & (size > 0)  # a sum of zeros is exact, whatever noise it has by now
        return np.where(open_, self._half_of_draws(np.shape(value)), np.where(above, 1.0, 0.0))

    def relu(self, value: np.ndarray) -> np.ndarray:
        # a weight's gradient may be 0 but for one sample whose value noise opens once in a hundred draws: half of the draws open it as far
        # as it would be then, which is less than the noise
        unit = finite(self._unit * np.sqrt((value * value).mean(axis=-1, keepdims=True)))
        near = (value < 0) & (value >= -STEP_UNITS * unit)
        below = np.where(near, self._half_of_draws(np.shape(value)) * (OPENED_UNITS * unit), 0.0)
        return np.where(value < 0, below, value)

    @property
    def _unit(self) -> float:
        """A spacing of what a sum's terms may have been stored in, as a share of them."""
        stored_terms = self.dtype in FORMATS and set(self.points) - set(COMPUTED)
        return 2.0 ** -FORMATS[self.dtype][0] if stored_terms else TF32_TRUNCATION if self.tf32 else 2.0**-22

    def _half_of_draws(self, shape: tuple[int, ...]) -> Any:
        """1 in half of the draws, which are others for each element, else 0: so that what two of them move cancels in few sums over them."""
        drawn = self.random.random(shape, np.float32)
        state = self.once(lambda: [0, 0.0])  # how many draws are left, and in how many of these it is to be 1
        if not state[0]:
            state[:] = self.draws, self.draws / 2 + 0 * drawn
        taken = np.where(drawn * state[0] < state[1], 1.0, 0.0)
        state[:] = state[0] - 1, state[1] - taken
        return taken

    def _deviation(
        self, total: np.ndarray, squares: np.ndarray, in_order: np.ndarray, unit: float, steps: int, terms: int = 0,
        repeats: Any = 0.0, lost: float = 0.0,
    ) -> np.ndarray:  # fmt: skip
        """Standard deviation of a sum of K terms in `steps` additions of relative error `unit`, and of what is `lost` besides.

        Each addition errs by a uniform share of `unit` times the partial sum. In random order the squares of the partial
        sums have the mean total²/3 + squares/6 (docs/numerics.md). Most programs add in the order of memory, where they have
        the mean `in_order`: the larger counts, because a whole column may share an order that is a bad one.

        Of `terms` that are nearly equal, which differ by less than a spacing of their total, every addition between two
        powers of 2 errs by the same amount: the errors add up instead of averaging, to the variance (unit terms total)²/45.
        So do those of `repeats` terms with the same value, to (unit total)² terms repeats / 45.
        """
        if terms <= 5:  # from where the latter is the larger
            return deviation_of_sum(total, squares, in_order, steps, unit, lost)
        scatter = squares / terms - (total / terms) ** 2
        # 1e-15: what float64 leaves of a difference between equal terms
        equal = scatter < spacing(total, "float32") ** 2 + 1e-15 * squares / terms
        alike = np.where(equal, terms, repeats)
        variance = np.maximum(variance_of_sum(total, squares, in_order, steps), terms * alike * total**2 / 45)
        return finite(np.hypot(unit * np.sqrt(variance), lost))

    def _of_product(self, a: np.ndarray, b: np.ndarray, product: np.ndarray) -> tuple[np.ndarray, Any]:
        """The standard deviation of summing a @ b = `product` over K; and what tensor cores cut off everywhere towards zero, else 0."""
        squares, K = (a**2) @ (b**2), a.shape[-1]
        in_order = partial_sums(a, b, TENSOR_CORE_STEP if self.tensor_cores else 1)
        # once for each k, in the product or in the sum, half of the smallest subnormal may be lost at most
        lost = 2.0**-150 * math.sqrt(K / 3)
        if not self.tensor_cores:
            return self._deviation(product, squares, in_order, 2.0**-24, K, K, lost=lost), 0.0
        steps = math.ceil(K / TENSOR_CORE_STEP)
        deviation = self._deviation(product, squares, in_order, TENSOR_CORE_UNIT, steps, lost=lost)
        # half of the most that a step may lose of a partial sum adds up: a sum that ends near zero may have been larger on the way
        mean = mean_of_partial_sums(a, b, TENSOR_CORE_STEP)
        cut = larger(mean, product, TENSOR_CORE_UNIT / 2 * steps)
        if not self.tf32:
            return deviation, cut
        # each operand loses between 0 and 2^-10 of itself: a mean of half that
        return deviation, finite(cut + TF32_TRUNCATION * product)

    def _of_operands(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        """The standard deviations of what TF32's operands lose of a @ b: of each element's own, and of what its row and its column share.

        The loss of an operand has a variance of (2^-10 of it)² / 12, and it is in all of a row or a column: what it does to the mean of a
        row is what it does with the means of b's rows. Together that is no more noise in any element.
        """
        a, b = tf32_size(a), tf32_size(b)
        each = (a**2) @ (b**2) / 12
        of_row = np.minimum((a**2) @ (finite(b).mean(axis=-1, keepdims=True) ** 2) / 12, each)
        of_column = np.minimum((finite(a).mean(axis=-2, keepdims=True) ** 2) @ (b**2) / 12, each)
        variances = 2 * each - of_row - of_column, of_row, of_column
        return tuple(finite(TF32_TRUNCATION * np.sqrt(variance)) for variance in variances)

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = self._flushed(a, a), self._flushed(b, b)  # many that are lost may come to a product that is not small
        product = a @ b
        deviation, cut = self.once(lambda: self._of_product(a, b, product))
        if not self.tensor_cores:
            return moved(product, deviation, self._normal(product))
        if self.tf32:
            own, of_row, of_column = self.once(lambda: self._of_operands(a, b))
            deviation, (*heads, M, N) = self.once(lambda: np.hypot(deviation, own)), np.shape(product)
            row, column = self._balanced((*heads, M, 1)), self._balanced((*heads, 1, N))
            product = product + math.sqrt(12) * (of_row * row + of_column * column)
        return summed(product, cut, self.towards_zero, deviation, self._normal(product))

    def sum(self, value: np.ndarray, axis: int, keepdims: bool = False, point: str = "") -> np.ndarray:
        total, K = value.sum(axis=axis, keepdims=keepdims), value.shape[axis]

        def sizes() -> tuple[np.ndarray, np.ndarray]:
            squares = sum_of_squares(value, axis, keepdims)
            in_order = sum_of_squares(np.cumsum(value, axis=axis), axis, keepdims) / K
            # terms of less than half a spacing of the sum are lost, one by one, by a program that adds them one by one
            half = spacing(value.sum(axis=axis, keepdims=True), "float32") / 2
            lost = np.where(np.abs(value) < half, value, 0.0).sum(axis=axis, keepdims=keepdims)
            repeats = repeated(value, axis, keepdims)
            deviation = self._deviation(total, squares, in_order, 2.0**-24, K, K, repeats)
            unit = 2.0 ** -(FORMATS[self.dtype][0] + 1) if point in self.points else 0.0
            return finite(np.hypot(deviation, unit * np.sqrt(variance_in_lanes(total, squares, K)))), finite(lost)

        deviation, lost = self.once(sizes)
        return moved(total + self.towards_zero * lost, deviation, self._normal(total))

    def segments(self, point: str, value: np.ndarray, starts: np.ndarray) -> np.ndarray:
        total, unit = of_segments(value, starts), 2.0**-24
        if point in self.points:
            unit = 2.0 ** -(FORMATS[self.dtype][0] + 1)

        def size() -> np.ndarray:
            steps = np.diff(starts).astype(float)[:, None]  # additions of each
            squares = of_segments(value**2, starts)
            # in whatever order: atomic additions have none, and rows that repeat are few
            return finite(unit * np.sqrt(steps / 3 * np.maximum(total**2, squares)))

        return moved(total, self.once(size), self._normal(total))

    def either(self, value: np.ndarray, other: np.ndarray) -> np.ndarray:
        # half of the draws have the mirror image about the other: so what is made of `value` and of its terms errs by no less than with one
        place, self.balanced = self.balanced, self.balanced + 1
        return other + (value - other) * hadamard(self.draw, 1 + place % (self.draws - 1))

    def one_pass(self, point: str, value: np.ndarray, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> np.ndarray:
        if point not in self.points or self.dtype == "float32":
            return value  # float32 can shift a row by its mean, so that nothing cancels: it is owed nothing
        product = a @ b
        deviation, cut = self.once(lambda: self._of_product(a, b, product))
        size = np.abs(scale)
        return moved(value + finite(self.towards_zero * cut * size), finite(deviation * size), self._normal(product))

    def half_sums(self, value: np.ndarray, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> np.ndarray:
        if HALF_SUMS not in self.points:
            return value
        product = a @ b
        deviation, overflows = self.once(lambda: self._of_half_sums(a, b, product))
        drawn = moved(value, finite(deviation * np.abs(scale)), self._normal(product))
        # then the whole is infinite, of either sign by the order of the sum, or NaN
        overflow = {0: np.inf, 1: -np.inf, 2: np.nan}.get(self.draw)
        return drawn if overflow is None else np.where(overflows, overflow, drawn)

    def _of_half_sums(self, a: np.ndarray, b: np.ndarray, product: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The standard deviation of summing a @ b = `product` in float16; and where a partial sum may pass the largest float16."""
        squares, steps = (a**2) @ (b**2), math.ceil(a.shape[-1] / TENSOR_CORE_STEP)
        in_order = partial_sums(a, b, TENSOR_CORE_STEP)
        variance = self._deviation(product, squares, in_order, HALF_UNIT, steps) ** 2
        variance = variance + steps / 3 * HALF_LOST**2  # each step may lose half of the smallest subnormal
        if self.dtype == "float32":  # operands are rounded to float16 as well, subnormals too
            lost = (a**2).sum(axis=1, keepdims=True) + (b**2).sum(axis=0, keepdims=True)
            variance = variance + 2 * squares / 3 * HALF_UNIT**2 + HALF_LOST**2 / 3 * lost
        return finite(np.sqrt(variance)), np.abs(a) @ np.abs(b) > HALF_LARGEST

    def fast_variance(self, value: np.ndarray, a: np.ndarray, mean: np.ndarray) -> np.ndarray:
        if FAST_VARIANCE not in self.points:
            return value
        square = self.compute(self.sum(a**2, axis=1, keepdims=True) / a.shape[1])
        return np.maximum(self.compute(square - self.compute(mean**2)), 0.0)


def _of_rows(value: np.ndarray) -> bool:
    """Whether a value is a constant, or one of a whole row: what is made of it errs as it does in the entire row."""
    return not np.shape(value) or np.shape(value)[-1] == 1


def _in_one_pass(value: Any) -> bool:
    """Whether a value is large and on a GPU: there its noise has the size of each draw's own value, which is then read once."""
    return getattr(value, "is_cuda", False) and not _of_rows(value)
