"""How a formula is evaluated: exactly (the reference) or with rounding noise at its named points (the budget).

A formula calls `r.dot` for its products, `r.round(point, value)` where an implementation may store an intermediate in the
storage dtype, and `r.compute(value)` where every implementation rounds to the precision it computes in. `Exact` leaves the
float64 values alone; `Noisy` draws a perturbation of the size that rounding has there, which is Monte Carlo arithmetic
(Parker 1997).
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from fusebench.contract import Case

# Unit roundoffs, half the spacing of 1.0.
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Tensor cores read the upper 19 bits of a float32: unless a program rounds first, that truncates towards zero (seen on an
# H200: Triton's products come out up to 2^-10 smaller, cuBLAS's do not).
TF32_TRUNCATION = 2.0**-10
# Tensor cores align and truncate the products of one instruction instead of rounding each sum (Fasi et al. 2021).
TENSOR_CORE_UNIT = 2.0**-22


class Exact:
    """The reference: every point returns what it is given. `seen` are the names of the points that it came to."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product a (…, K) @ b (K, N)."""
        return a @ b

    def round(self, point: str, value: np.ndarray) -> np.ndarray:
        """A point that an implementation may round to the storage dtype."""
        self.seen.add(point)
        return value

    def compute(self, value: np.ndarray) -> np.ndarray:
        """A point that is rounded to the precision of the computation everywhere."""
        return value

    def one_pass(self, point: str, value: np.ndarray, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """A point where an implementation may have computed `value` from a @ b, times `scale`, through a cancellation."""
        self.seen.add(point)
        return value


class Noisy(Exact):
    """One draw of the rounding that an implementation with the declared points does.

    Elementwise noise is uniform within the unit roundoff; a K-long sum has noise within sqrt(K) u (|a| @ |b|), the
    probabilistic bound of Higham and Mary (2019).
    """

    def __init__(self, case: Case, points: Collection[str], rng: np.random.Generator):
        super().__init__()
        self.points, self.rng = frozenset(points), rng
        self.storage = UNIT[case.dtype]
        # 16-bit data and tf32 go through tensor cores; their elementwise arithmetic is float32 all the same
        self.accumulate = UNIT["float32"] if case.precision == "ieee" and case.dtype == "float32" else TENSOR_CORE_UNIT
        self.tf32 = case.precision == "tf32"
        self.sizes: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}  # of the products, in the order of the formula
        self.dots = 0

    def again(self) -> Noisy:
        """Begins another draw; the sizes of the products, which noise changes to second order, are kept."""
        self.dots = 0
        return self

    def _uniform(self, value: np.ndarray) -> np.ndarray:
        return self.rng.uniform(-1.0, 1.0, np.shape(value))

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        product = a @ b
        if self.dots not in self.sizes:
            self.sizes[self.dots] = (np.abs(a) @ np.abs(b), np.sqrt((a**2) @ (b**2)) if self.tf32 else None)
        size, root_square = self.sizes[self.dots]
        self.dots += 1
        noise = self.accumulate * math.sqrt(a.shape[-1]) * size * self._uniform(product)
        if root_square is not None:
            # each operand loses between 0 and 2^-10 of itself: a mean of 2^-11, and a variance of 2^-20 / 12, for each of the two
            noise += TF32_TRUNCATION * (
                root_square * math.sqrt(2 / 12) * self.rng.standard_normal(product.shape) - product
            )
        return product + noise

    def round(self, point: str, value: np.ndarray) -> np.ndarray:
        unit = self.storage if point in self.points else UNIT["float32"]
        return value * (1 + unit * self._uniform(value))

    def compute(self, value: np.ndarray) -> np.ndarray:
        return value * (1 + UNIT["float32"] * self._uniform(value))

    def one_pass(self, point: str, value: np.ndarray, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> np.ndarray:
        if point not in self.points or self.storage == UNIT["float32"]:
            return value  # float32 can shift a row by its mean, so that nothing cancels: it is owed no allowance
        if self.dots not in self.sizes:
            self.sizes[self.dots] = (np.abs(a) @ np.abs(b), None)
        size = self.sizes[self.dots][0]
        self.dots += 1
        return value + self.accumulate * math.sqrt(a.shape[-1]) * size * np.abs(scale) * self._uniform(value)
