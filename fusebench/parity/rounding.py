"""How a formula is evaluated: exactly (the reference), as its declared points store it, or with rounding noise (noise.py, the budget).

A formula names what rounding its programs do: `r.dot` and `r.sum` for sums, `r.compute` where every program rounds to
float32, `r.function` for an elementary function, `r.round(point, value)` where a program may store an intermediate in the
storage dtype. `Exact` leaves float64 alone. `Stored` rounds at the declared points and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from fusebench.contract import Case
from fusebench.parity.elements import stored
from fusebench.parity.sums import of_segments

# An elementary function in float32 is off by up to 2 units in the last place (CUDA C++ Programming Guide, mathematical
# functions: expf, tanhf, erff, rsqrtf); a correctly rounded one by half a unit.
FUNCTION_SPACINGS = 2.0
FLUSHED = "subnormals"  # the point of programs, or of back ends, that flush float32 subnormals to zero
HALF_SUMS = "half_sums"  # of programs that sum a product in float16
FAST_VARIANCE = "fast_variance"  # of programs that take a variance as mean(x²) - mean(x)²
COMPUTED = (FLUSHED, HALF_SUMS, FAST_VARIANCE)  # points that say how a program computes, which counts in float32 too


class Exact:
    """The reference: every point returns what it is given. `seen` are the names of the points that it came to; `chosen` are
    the numbers of the rows that are evaluated, None for all."""

    def __init__(self, chosen: np.ndarray | None = None) -> None:
        self.chosen = chosen
        self.seen: set[str] = set()
        self.by_number = False  # whether the formula asked for the numbers of rows

    def rows(self, count: int) -> np.ndarray:
        """The numbers of the `count` rows at hand, (count,): for formulas in which a row's number matters."""
        self.by_number = True
        return np.arange(count) if self.chosen is None else self.chosen

    def once(self, make: Callable[[], Any]) -> Any:
        """What `make` returns, of inputs that nothing rounds, such as the places of ids in a table: made once for all draws."""
        return make()

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product a (…, M, K) @ b (…, K, N), summed in float32 at least."""
        return a @ b

    def sum(self, value: np.ndarray, axis: int, keepdims: bool = False, point: str = "") -> np.ndarray:
        """Sum along an axis in float32, or in the storage dtype where the program declares the point."""
        return value.sum(axis=axis, keepdims=keepdims)

    def segments(self, point: str, value: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Sums of the rows starts[n] … starts[n + 1] - 1 of `value` (L, D) for each n, 0 of none: in float32, or in the storage dtype
        where the program declares the point."""
        self.seen.add(point)
        return of_segments(value, starts)

    def round(self, point: str, value: np.ndarray) -> np.ndarray:
        """A point that a program may round to the storage dtype; others keep it in float32."""
        self.seen.add(point)
        return value

    def narrow(self, point: str, value: np.ndarray) -> np.ndarray:
        """A point that only some programs have: those that declare it round to the storage dtype, others do nothing there."""
        self.seen.add(point)
        return value

    def compute(self, value: np.ndarray) -> np.ndarray:
        """The result of one float32 operation."""
        return value

    def function(self, value: np.ndarray, spacings: float = FUNCTION_SPACINGS) -> np.ndarray:
        """The value of an elementary function (exp, tanh, 1/sqrt, division) in float32, off by up to that many spacings."""
        return value

    def positive(self, value: np.ndarray, size: np.ndarray) -> np.ndarray:
        """1 where the value is above 0, else 0: the slope of a relu. Sums of terms of that `size` may come out on either side."""
        return np.where(value > 0, 1.0, 0.0)

    def relu(self, value: np.ndarray) -> np.ndarray:
        """The relu of sums (…, N) on the way to another layer; NaN stays. A sum just below 0 may come out above it."""
        return np.where(value < 0, 0.0, value)

    def either(self, value: np.ndarray, other: np.ndarray) -> np.ndarray:
        """`value`, which some programs compute as the `other`: but for rounding they are the same."""
        return value

    def one_pass(self, point: str, value: np.ndarray, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """A point where a program may have computed `value` from a @ b, times `scale`, through a cancellation."""
        self.seen.add(point)
        return value

    def half_sums(self, value: np.ndarray, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The point HALF_SUMS: `value` may come from a (M, K) @ b (K, N), times `scale`, summed in float16."""
        self.seen.add(HALF_SUMS)
        return value

    def fast_variance(self, value: np.ndarray, a: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """The point FAST_VARIANCE: `value`, the variance of the rows of a (M, K), may be mean(a²) - mean², in float32."""
        self.seen.add(FAST_VARIANCE)
        return value


class Stored(Exact):
    """What the declared points make of the inputs at hand, without any other rounding.

    Noise is independent from element to element; real rounding repeats itself where values repeat, and adds up.
    """

    def __init__(self, case: Case, points: Collection[str], chosen: np.ndarray | None = None):
        super().__init__(chosen)
        self.points, self.dtype = frozenset(points), case.dtype

    def round(self, point: str, value: np.ndarray) -> np.ndarray:
        return stored(value, self.dtype) if point in self.points else value

    narrow = round


def evaluate(formula: Callable[..., Any], case: Case, r: Exact, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a formula, also where it returns one array alone. Raises ValueError where there is none."""
    outputs = formula(case, r, *inputs)
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    if not outputs:
        raise ValueError(f"{case.kernel}: the formula returned no output")
    return outputs
