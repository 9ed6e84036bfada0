"""Correct programs made of a kernel's own formula: evaluated in float32, in some order of its sums, with some of its points stored. They
show no mistake of the formula, which programs/<kernel>.py are for, but any kernel and mode has them, and any points."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebench.contract import Case
from fusebench.dtypes import numpy_dtype
from fusebench.parity.judge import Judge
from fusebench.parity.rounding import COMPUTED, Exact, evaluate
from programs.arithmetic import PRODUCTS, SUMS, TENSOR_CORES, TF32, compensated, in_storage, keep, products, wide


def truncated(value):
    """Towards zero: a function that errs the same way everywhere, by less than a spacing."""
    near = wide(value)
    return np.where(
        np.isfinite(near) & (np.abs(near.astype(float)) > np.abs(value)), np.nextafter(near, np.float32(0)), near
    )


FUNCTIONS = {"nearest": wide, "truncated": truncated}


@dataclass(frozen=True)
class Order:
    """How a program computes: its products, its sums, its functions, the points that it stores, and which of two ways (`either`)."""

    product: str
    sum: str
    function: str
    points: tuple[str, ...]
    other: bool

    @property
    def name(self) -> str:
        points = "+".join(self.points) or "no points"
        return (
            f"formula, {self.product}, {self.sum}, {self.function}, {points}{', the other way' if self.other else ''}"
        )


def orders(case: Case) -> dict[str, Any]:
    """The products for the case."""
    if products(case) == "ieee":
        return PRODUCTS | {"compensated": compensated}
    return TENSOR_CORES if case.dtype != "float32" else TF32


def draw(rng: np.random.Generator, judge: Judge) -> Order:
    """A program for the case of the judge, which has none, some or all points."""
    judge.reference()
    known = sorted(judge.points - {*COMPUTED, "one_pass"}) if judge.case.dtype != "float32" else ()
    share = rng.choice([0, 0.2, 0.5, 1])
    points = tuple(point for point in known if rng.random() < share)
    names = [str(rng.choice(sorted(found))) for found in (orders(judge.case), SUMS, FUNCTIONS)]
    return Order(*names, points, bool(rng.random() < 0.5))


def run(order: Order, judge: Judge) -> list[np.ndarray]:
    """Its outputs of the judge's inputs, of which it sees all."""
    arrays = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in judge.arrays.values()]
    with np.errstate(all="ignore"):
        outputs = evaluate(judge.mathematics.formula_of(""), judge.case, InFloat32(judge.case, order), arrays)
        return [np.asarray(o).astype(numpy_dtype(judge.dtype(n))) for n, o in enumerate(outputs)]


class InFloat32(Exact):
    """The points of a formula as that program computes them; what passes between two of them is not rounded."""

    def __init__(self, case: Case, order: Order) -> None:
        super().__init__()
        self.case, self.order, self.points = case, order, frozenset(order.points)

    def dot(self, a, b):
        return orders(self.case)[self.order.product](wide(a), wide(b)).astype(np.float64)

    def sum(self, value, axis, keepdims=False, point=""):
        terms = np.moveaxis(wide(value), axis, -1)
        total = in_storage(self.case, terms) if point in self.points else SUMS[self.order.sum](terms)
        total = np.moveaxis(total.astype(np.float64), -1, axis)
        return total if keepdims else total.squeeze(axis)

    def segments(self, point, value, starts):
        sums = np.zeros((len(starts) - 1, value.shape[1]), np.float32)
        for row, (begin, end) in enumerate(itertools.pairwise(starts)):
            for term in wide(value[begin:end]):
                sums[row] = keep(self.case, sums[row] + term) if point in self.points else sums[row] + term
        return sums.astype(np.float64)

    def compute(self, value):
        return wide(value).astype(np.float64)

    def function(self, value, spacings=2.0):
        return FUNCTIONS[self.order.function](np.asarray(value, np.float64)).astype(np.float64)

    def round(self, point, value):
        return self.narrow(point, value) if point in self.points else self.compute(value)

    def narrow(self, point, value):
        return keep(self.case, np.asarray(value)).astype(np.float64) if point in self.points else value

    def either(self, value, other):
        return other if self.order.other else value
