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
UNIT = {"float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Tensor cores align and truncate the products of one instruction instead of rounding each sum (Fasi et al. 2021).
TENSOR_CORE_UNIT = 2.0**-22


class Exact:
    """The reference: every point returns what it is given."""

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Matrix product a (…, K) @ b (K, N)."""
        return a @ b

    def round(self, point: str, value: np.ndarray) -> np.ndarray:
        """A point that an implementation may round to the storage dtype."""
        return value

    def compute(self, value: np.ndarray) -> np.ndarray:
        """A point that is rounded to the precision of the computation everywhere."""
        return value

    def one_pass(self, point: str, value: np.ndarray, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """A point where an implementation may have computed `value` from a @ b, times `scale`, through a cancellation."""
        return value


class Noisy(Exact):
    """One draw of the rounding that an implementation with the declared points does.

    Elementwise noise is uniform within the unit roundoff; a K-long sum has noise within sqrt(K) u (|a| @ |b|), the
    probabilistic bound of Higham and Mary (2019).
    """

    def __init__(self, case: Case, points: Collection[str], rng: np.random.Generator):
        self.points, self.rng = frozenset(points), rng
        self.storage = UNIT[case.dtype]
        # 16-bit data and tf32 go through tensor cores; their elementwise arithmetic is float32 all the same
        self.accumulate = UNIT["float32"] if case.precision == "ieee" and case.dtype == "float32" else TENSOR_CORE_UNIT
        self.operand = UNIT["tf32"] if case.precision == "tf32" else 0.0

    def _uniform(self, value: np.ndarray) -> np.ndarray:
        return self.rng.uniform(-1.0, 1.0, np.shape(value))

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if self.operand:
            a = a * (1 + self.operand * self._uniform(a))
            b = b * (1 + self.operand * self._uniform(b))
        product = a @ b
        return product + self.accumulate * math.sqrt(a.shape[-1]) * (np.abs(a) @ np.abs(b)) * self._uniform(product)

    def round(self, point: str, value: np.ndarray) -> np.ndarray:
        unit = self.storage if point in self.points else UNIT["float32"]
        return value * (1 + unit * self._uniform(value))

    def compute(self, value: np.ndarray) -> np.ndarray:
        return value * (1 + UNIT["float32"] * self._uniform(value))

    def one_pass(self, point: str, value: np.ndarray, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> np.ndarray:
        if point not in self.points:
            return value
        terms = math.sqrt(a.shape[-1]) * (np.abs(a) @ np.abs(b)) * np.abs(scale)
        return value + self.accumulate * terms * self._uniform(value)
