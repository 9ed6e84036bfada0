"""Whether an output is right: its error against the float64 reference, measured in its own rounding budget.

The budget of an element is half a spacing of the storage dtype there, plus `SIGMAS` standard deviations of what rounding
noise at the implementation's declared points does to the formula (rounding.py). No tolerance is set by hand anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebench.contract import Case
from fusebench.inputs import numpy_dtype
from fusebench.rounding import Exact, Noisy

DRAWS = 8  # noisy evaluations; each costs about as much as the reference
SIGMAS = 6.0
SHRINK = 4.0  # weight of the row's mean variance beside an element's own, whose estimate from 8 draws scatters
FULL_FLOPS = 1.0e9  # up to here all rows are checked element by element
REFERENCE_FLOPS = 1.0e10  # up to here the other rows have a reference too, and are screened
SCREEN = 4.0  # how far beyond the largest budget seen an unsampled row's element may be


@dataclass(frozen=True)
class Verdict:
    """How far an output is off. `ratio` is the largest error ÷ budget; the output is right if it is at most 1."""

    ratio: float
    max_abs: float
    max_rel: float
    index: tuple[int, ...]
    got: float
    expected: float
    budget: float
    output: int
    checked: int
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and self.ratio <= 1


class Judge:
    """The reference and budgets of one case on one input set, each computed once and kept for all its cells."""

    def __init__(self, module: Any, case: Case, inputs: Mapping[str, np.ndarray], seed: int = 0):
        self.module, self.case, self.seed = module, case, seed
        self.inputs = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in inputs.values()]
        self.row_inputs = [name in getattr(module, "ROWS", ()) for name in inputs]
        flops = max(module.flops(case), module.moved_bytes(case))
        height = next((a.shape[0] for a, r in zip(self.inputs, self.row_inputs, strict=True) if r), 0)
        self.sampled = _sample(height, seed) if flops > FULL_FLOPS and height > 80 else None
        self.all_rows = self.sampled is None or flops <= REFERENCE_FLOPS
        self._exact: list[np.ndarray] | None = None
        self.points: set[str] = set()  # that the formula has
        self._budgets: dict[tuple[str, ...], list[np.ndarray]] = {}

    def _evaluate(self, r: Exact, rows: np.ndarray | None) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            chosen = [
                a if rows is None or not of_rows else a[rows]
                for a, of_rows in zip(self.inputs, self.row_inputs, strict=True)
            ]
            outputs = self.module.formula(self.case, r, *chosen)
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return [np.asarray(o, dtype=np.float64) for o in outputs]

    def reference(self) -> list[np.ndarray]:
        """The formula in float64, over all rows, or over the sampled ones where all would take too long."""
        if self._exact is None:
            exact = Exact()
            self._exact = self._evaluate(exact, None if self.all_rows else self.sampled)
            self.points = exact.seen
        return self._exact

    def sampled_reference(self) -> list[np.ndarray]:
        return (
            self.reference()
            if self.sampled is None or not self.all_rows
            else [e[self.sampled] for e in self.reference()]
        )

    def budgets(self, points: Sequence[str]) -> list[np.ndarray]:
        """Per output, how far a correct implementation that rounds at `points` may be off on each sampled element."""
        key = tuple(sorted(points))
        if key not in self._budgets:
            noisy = Noisy(self.case, points, np.random.default_rng([self.seed, 77]))
            exact = self.sampled_reference()
            variances = [np.zeros_like(e) for e in exact]
            for _ in range(DRAWS):
                for total, drawn, e in zip(variances, self._evaluate(noisy.again(), self.sampled), exact, strict=True):
                    with np.errstate(all="ignore"):
                        total += np.nan_to_num((drawn - e) ** 2, nan=0.0, posinf=0.0, neginf=0.0)
            self._budgets[key] = [
                spacing(e, self.case.dtype) / 2
                + SIGMAS * np.sqrt((v + SHRINK * _row_mean(v) / DRAWS) / (DRAWS + SHRINK))
                for v, e in zip(variances, exact, strict=True)
            ]
        return self._budgets[key]

    def judge(self, outputs: Sequence[np.ndarray], points: Sequence[str]) -> Verdict:
        """Compares the outputs (any float dtype, the reference's shapes) of an implementation that rounds at `points`."""
        exact = self.sampled_reference()
        problem = self._shape_problem(outputs)
        if undeclared := sorted(set(points) - self.points):
            problem = f"VARIANTS names the point {undeclared[0]!r}; the formula has {', '.join(sorted(self.points)) or 'none'}"
        if problem:
            nan = float("nan")
            return Verdict(float("inf"), nan, nan, (), nan, nan, nan, 0, 0, problem)
        worst: Verdict | None = None
        for number, (output, e, budget) in enumerate(zip(outputs, exact, self.budgets(points), strict=True)):
            rows = self.sampled
            verdict = _compare(output if rows is None else output[rows], e, budget, rows, number)
            if self.sampled is not None and self.all_rows:
                allowed = np.full(1, SCREEN * budget.max(initial=0.0))
                screened = _compare(output, self.reference()[number], allowed, None, number)
                verdict = max(verdict, screened, key=lambda v: v.ratio) if screened.ratio > 1 else verdict
            worst = verdict if worst is None or verdict.ratio > worst.ratio else worst
        if worst is None:
            raise ValueError(f"{self.case.kernel}: the formula returned no output")
        return worst

    def _shape_problem(self, outputs: Sequence[np.ndarray]) -> str:
        if len(outputs) != len(self.reference()):
            return f"{len(outputs)} outputs, expected {len(self.reference())}"
        for output, e in zip(outputs, self.reference(), strict=True):
            height = e.shape[:1] if self.all_rows else next(
                a.shape[:1] for a, r in zip(self.inputs, self.row_inputs, strict=True) if r
            )  # fmt: skip
            if output.shape != (*height, *e.shape[1:]):
                return f"shape {output.shape}, expected {(*height, *e.shape[1:])}"
            if output.dtype != numpy_dtype(self.case.dtype):
                return f"dtype {output.dtype.name}, expected {self.case.dtype}"
        return ""


def spacing(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance between neighbours of the storage dtype at each value (float64 in, float64 out), subnormals included."""
    mantissa, smallest = {"float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}[dtype]
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.where(np.isfinite(values), values, 1.0))[1] - 1
    return np.exp2(np.where(values == 0, smallest, np.maximum(exponent, smallest)).astype(np.float64) - mantissa)


def _compare(
    got: np.ndarray, expected: np.ndarray, budget: np.ndarray, rows: np.ndarray | None, output: int
) -> Verdict:
    got = got.astype(np.float64)
    budget = np.broadcast_to(budget, expected.shape)
    if not got.size:
        return Verdict(0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0, output, 0)
    with np.errstate(all="ignore"):
        error = np.abs(got - expected)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
        ratio = np.where(error == 0, 0.0, error / budget)
        at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        relative = error / np.where(expected == 0, np.inf, np.abs(expected))
    index = tuple(int(i) for i in at)
    shown = (int(rows[index[0]]), *index[1:]) if rows is not None else index
    return Verdict(
        float(ratio[at]), float(error.max()), float(np.nanmax(relative)), shown, float(got[at]), float(expected[at]),
        float(budget[at]), output, got.size,
    )  # fmt: skip


def _row_mean(variance: np.ndarray) -> np.ndarray:
    return variance.mean(axis=-1, keepdims=True) if variance.ndim else variance


def _sample(height: int, seed: int) -> np.ndarray:
    """First and last rows, the edges of the usual blocks, and 32 random rows."""
    edges = [r for block in (16, 32, 64, 128, 256) for r in (block - 1, block) if r < height]
    random = np.random.default_rng([seed, height]).integers(0, height, 32)
    return np.unique(np.array([0, 1, height - 2, height - 1, *edges, *random]))
