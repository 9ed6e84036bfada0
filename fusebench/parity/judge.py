"""Whether an output is right: its error against the float64 reference, measured by what rounding alone may do (allowance.py).

No tolerance is set by hand anywhere. Of a large case only some rows are judged so, others are compared with the reference
alone, and what is left over with a reference on the device, where there is one (reference.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fusebench.contract import Case, Mathematics
from fusebench.dtypes import FORMATS, numpy_dtype
from fusebench.inputs import make_sets
from fusebench.parity import pattern
from fusebench.parity.allowance import DRAWS, Allowance, derive, errors, limit_of, together
from fusebench.parity.rounding import FLUSHED, Exact, Noisy, Stored, spacing
from fusebench.parity.verdict import Verdict, Worst

JUDGED_FLOPS, JUDGED_ELEMENTS = 2.5e8, 4e5  # what of a case gets noisy evaluations: rows are chosen beyond
REFERENCE_FLOPS, REFERENCE_BYTES = 1e10, 1e9  # what of a case gets a reference on the CPU: rows are chosen beyond
RANDOM_ROWS, FEWEST_ROWS = 64, 8
BLOCKS = (16, 32, 64, 128, 256)  # of the usual tiles: a mistake shows at their edges
SCREEN = 4.0  # times what any judged element may be off, an element of another row may be


@dataclass
class Judge:
    """The reference and the allowances of one case on one input set, each computed once and kept for all its cells."""

    mathematics: Mathematics
    case: Case
    arrays: Mapping[str, np.ndarray]
    seed: int = 0
    on_device: bool = False  # whether the reference on the device will see all rows: then the CPU need not
    part: str = ""  # of the kernel's PARTS, the whole kernel if empty
    exact: list[np.ndarray] = field(default_factory=list)
    points: set[str] = field(default_factory=set)  # that the formula has
    allowances: dict[tuple[str, ...], list[Allowance]] = field(default_factory=dict)
    limits: dict[tuple[int, float], np.ndarray] = field(default_factory=dict)  # of the screened elements

    def __post_init__(self) -> None:
        self.inputs = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in self.arrays.values()]
        self.row_axes = [self.mathematics.rows.get(name) for name in self.arrays]  # of the inputs, None without rows
        heights = [a.shape[axis] for a, axis in zip(self.inputs, self.row_axes, strict=True) if axis is not None]
        self.height = heights[0] if heights else 0
        flops, moved = self.mathematics.flops(self.case), self.mathematics.moved_bytes(self.case)
        self.judged = self._rows(flops / JUDGED_FLOPS, moved / self.case.itemsize / JUDGED_ELEMENTS, fewest=FEWEST_ROWS)
        self.referenced = self._rows(flops / REFERENCE_FLOPS, moved / REFERENCE_BYTES, fewest=2 * RANDOM_ROWS)
        if self.on_device:
            self.referenced = self.judged

    def axis(self, number: int) -> int:
        """The axis of the rows of output `number`."""
        return self.mathematics.output_axis(number, self.arrays)

    def _rows(self, *excess: float, fewest: int) -> np.ndarray | None:
        """Numbers of rows to look at, or None for all: the first and last, those at the edges of the usual blocks, random
        ones, in this order, as many as fit."""
        fit = self.height / max(1.0, *excess)
        if fit >= self.height or self.height <= fewest:
            return None
        random = np.random.default_rng([self.seed, self.height]).integers(0, self.height, RANDOM_ROWS)
        edges = [r for block in BLOCKS for r in (block - 1, block, self.height // block * block)]
        wanted = [0, self.height - 1, *random[:4], *edges, *random]
        inside = list(dict.fromkeys(int(r) for r in wanted if r < self.height))
        return np.sort(inside[: max(fewest, int(fit))])

    def _evaluate(self, r: Exact) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            chosen = [
                a if r.chosen is None or axis is None else np.take(a, r.chosen, axis=axis)
                for a, axis in zip(self.inputs, self.row_axes, strict=True)
            ]
            outputs = self.mathematics.formula_of(self.part)(self.case, r, *chosen)
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        if not outputs:
            raise ValueError(f"{self.case.kernel}: the formula returned no output")
        return [np.asarray(o, dtype=np.float64) for o in outputs]

    def reference(self) -> list[np.ndarray]:
        """The outputs in float64, of all rows or of the `referenced` ones."""
        if not self.exact:
            exact = Exact(self.referenced)
            self.exact, self.points = self._evaluate(exact), exact.seen
        return self.exact

    def allowed(self, points: Sequence[str]) -> list[Allowance]:
        """Per output, what a correct program that rounds at `points` may do to the judged rows."""
        # to store in float32 is no more than every float32 operation does: there the points make no difference
        key = tuple(sorted(p for p in points if p == FLUSHED or self.case.dtype != "float32"))
        if key not in self.allowances:
            noisy = Noisy(self.case, key, np.random.default_rng([self.seed, 77]), self.judged)
            draws = [self._evaluate(noisy.again()) for _ in range(DRAWS)]
            staged = self._evaluate(Stored(self.case, key, self.judged))
            judged = self._judged(self.reference())
            self.allowances[key] = [
                derive(exact, drawn, kept, self.case.dtype)
                for exact, drawn, kept in zip(judged, zip(*draws, strict=True), staged, strict=True)
            ]
        return self.allowances[key]

    def _judged(self, referenced: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The judged rows of arrays that hold the referenced ones."""
        if self.judged is None:
            return list(referenced)
        at = self.judged if self.referenced is None else np.searchsorted(self.referenced, self.judged)
        return [np.take(array, at, axis=self.axis(number)) for number, array in enumerate(referenced)]

    def judge(self, outputs: Sequence[np.ndarray], points: Sequence[str]) -> Verdict:
        """Compares the outputs (of the storage dtype, in the reference's shapes) of a program that rounds at `points`."""
        if problem := self._problem(outputs, points):
            nan = float("nan")
            return Verdict(float("inf"), nan, nan, nan, (), nan, nan, nan, 0, 0, problem=problem)
        referenced = [
            o.astype(np.float64)
            if self.referenced is None
            else np.take(o, self.referenced, self.axis(number)).astype(np.float64)
            for number, o in enumerate(outputs)
        ]
        verdicts = []
        for number, (got, allowance) in enumerate(zip(self._judged(referenced), self.allowed(points), strict=True)):
            expected = self._judged(self.reference())[number]
            error = errors(got, expected, allowance.nonfinite)
            rms, mean = together(error, allowance.deviation)
            verdict = self._worst(number, got, expected, error, allowance.limit, self.judged)
            verdicts.append(
                replace(verdict, rms=rms, rms_limit=allowance.rms_limit, mean=mean, mean_limits=allowance.mean_limits)
            )
            if self.judged is not None and len(self.judged) < referenced[number].shape[self.axis(number)]:
                screened = self._screen(number, referenced[number], allowance, *self.screens(points)[number])
                verdicts += [screened] if screened and screened.ratio > 1 else []
        return max(verdicts, key=lambda v: (not v.ok, v.ratio))

    def screens(self, points: Sequence[str]) -> list[tuple[float, float]]:
        """Per output, how far an element of a row that is not judged may be off, and the size of value up to which that holds;
        beyond it grows with the value. A screen for what is grossly wrong: rows differ in how far they may be off."""
        judged = [np.abs(e[np.isfinite(e)]).max(initial=0.0) for e in self._judged(self.reference())]
        reaches = [SCREEN * float(a.reach.max(initial=0.0)) for a in self.allowed(points)]
        return list(zip(reaches, map(float, judged), strict=True))

    def widened(self, verdict: Verdict, found: Worst) -> Verdict:
        """The verdict after the reference on the device saw all rows and `found` the worst (reference.py)."""
        shape = list(self.reference()[0].shape)
        shape[self.axis(0)] = self.height
        if found.ratio <= 1:
            return replace(verdict, checked=int(np.prod(shape)))
        return replace(
            verdict, ratio=found.ratio, max_abs=found.max_abs, ulps=found.ulps, got=found.got, expected=found.expected,
            budget=found.budget, output=found.output, index=found.index, max_rel=float("nan"), checked=int(np.prod(shape)),
            pattern=f"{found.beyond} elements of all rows",
        )  # fmt: skip

    def _screen(self, number: int, got: np.ndarray, allowance: Allowance, reach: float, size: float) -> Verdict | None:
        """All referenced rows, by what judged elements may be off; None where plainly all are right, as nearly always."""
        expected = self.reference()[number]
        with np.errstate(all="ignore"):  # a reach of 0 times an infinity: `errors` looks at what is infinite
            if (number, reach) not in self.limits:
                far = reach * np.maximum(1.0, np.abs(expected) / (size or 1.0))
                self.limits[number, reach] = limit_of(expected, far, self.case.dtype)
            limit = self.limits[number, reach]
            if (np.abs(got - expected) <= limit).all():
                return None
        overflow = {
            v: np.broadcast_to(w.any(self.axis(number), keepdims=True), got.shape)
            for v, w in allowance.nonfinite.items()
        }
        # other rows need not overflow where the judged ones do, nor to the same side
        largest = FORMATS[self.case.dtype][2]
        above, below = expected + reach > largest, expected - reach < -largest
        overflow[np.inf] = above | overflow.get(np.inf, False) & ~below
        overflow[-np.inf] = below | overflow.get(-np.inf, False) & ~above
        return self._worst(number, got, expected, errors(got, expected, overflow), limit, self.referenced)

    def _worst(
        self, number: int, got: np.ndarray, expected: np.ndarray, error: np.ndarray, limit: np.ndarray, rows: np.ndarray | None
    ) -> Verdict:  # fmt: skip
        """The verdict on the elements of output `number`, one by one; `rows` are the numbers of its rows."""
        if not got.size:
            return Verdict(0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0, number, 0)
        size = np.abs(error)
        with np.errstate(all="ignore"):
            ratio = np.where(size == 0, 0.0, size / np.where(limit > 0, limit, np.finfo(float).tiny))
            relative = np.where(size == 0, 0.0, size / np.where(expected == 0, np.inf, np.abs(expected)))
            relative = np.where(np.isnan(relative), np.inf, relative)  # something finite where NaN is expected
        place = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        index = [int(i) for i in place]
        numbers: list[np.ndarray | None] = [None] * got.ndim
        if rows is not None:
            axis = self.axis(number)
            index[axis], numbers[axis] = int(rows[index[axis]]), rows
        step = float(spacing(expected[place], self.case.dtype)) or float("nan")
        return Verdict(
            float(ratio[place]), float(size.max()), float(relative.max()), float(size[place]) / step, tuple(index),
            float(got[place]), float(expected[place]), float(limit[place]), number, got.size,
            pattern=pattern.describe(ratio > 1, numbers) if ratio[place] > 1 else "",
        )  # fmt: skip

    def _problem(self, outputs: Sequence[np.ndarray], points: Sequence[str]) -> str:
        """What makes a comparison pointless: an unknown point, another number, shape or dtype of outputs."""
        expected = self.reference()
        if undeclared := set(points) - self.points - {FLUSHED}:
            self.points |= every_point(self.mathematics, self.case, self.part)
            if undeclared := undeclared - self.points:
                known = ", ".join(sorted(self.points)) or "none"
                return f"VARIANTS names the point {min(undeclared)!r}; the formula has {known}"
        if len(outputs) != len(expected):
            return f"{len(outputs)} outputs, expected {len(expected)}"
        for number, (output, exact) in enumerate(zip(outputs, expected, strict=True)):
            shape = list(exact.shape)
            if self.referenced is not None:
                shape[self.axis(number)] = self.height
            if output.shape != tuple(shape):
                return f"shape {output.shape}, expected {tuple(shape)}"
            if output.dtype != numpy_dtype(self.case.dtype):
                return f"dtype {output.dtype.name}, expected {self.case.dtype}"
        return ""


def every_point(mathematics: Mathematics, case: Case, part: str = "") -> set[str]:
    """The names of the formula's points, whichever options lead to them, by evaluating the smallest named case."""
    sizes = min(mathematics.cases.values(), key=lambda sizes: mathematics.moved_bytes(replace(case, sizes=sizes)))
    seen: set[str] = set()
    for option, values in {"": ("",), **mathematics.options}.items():
        for value in values:
            changed = replace(case, sizes=sizes, options={**case.options, **({option: value} if option else {})})
            judge = Judge(mathematics, changed, make_sets(mathematics, changed, 0, 1)[0], part=part)
            judge.reference()
            seen |= judge.points
    return seen
