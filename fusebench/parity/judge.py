"""Whether an output is right: its error against the float64 reference, measured by what rounding alone may do (budget.py).

No tolerance is set by hand anywhere. Of a large case the judge sees some rows, and the reference on the device the others, by
the same rule (reference.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fusebench import modes
from fusebench.contract import Case, Mathematics
from fusebench.dtypes import numpy_dtype
from fusebench.inputs import make_sets
from fusebench.parity import rows
from fusebench.parity.budget import DRAWS, SECOND_LOOK_DRAWS, Budget, derive, errors, together
from fusebench.parity.evaluations import Evaluations, evaluations
from fusebench.parity.rounding import COMPUTED, FLUSHED, Exact, evaluate
from fusebench.parity.verdict import Asked, Verdict, Worst, worst_of

JUDGED_FLOPS, JUDGED_ELEMENTS = 2.5e8, 4e5  # what of a case the judge sees itself: rows are chosen beyond
CPU_FLOPS, CPU_ELEMENTS = 1e10, 4e6  # what of a case the reference on a CPU sees: rows are chosen beyond
DRAWN_ELEMENTS = 4e5  # of an output that is drawn from, because the formula needs all rows
WHOLE_ELEMENTS = 3e8  # of all outputs of such a formula, which a GPU compares in one go: some 60 GB of its memory
FEWEST_ROWS, UNLIKE_ROWS = 8, 8
# Of slices, each of which is a case of its own: the first, and one that nobody knows before; of those that are unlike the others one.
FEWEST_SLICES, UNLIKE_SLICES = 2, 1


def oversize(mathematics: Mathematics, case: Case) -> float:
    """How many times what the judge sees of a case itself it has; beyond 1 the reference on the device sees the rest."""
    flops, moved = mathematics.flops(case), mathematics.moved_bytes(case)
    return max(flops / JUDGED_FLOPS, moved / case.itemsize / JUDGED_ELEMENTS)


@dataclass
class Judge:
    """The reference and the budgets of one case on one input set, each computed once and kept for all its cells.

    `rows_seed` decides which rows of a large case are looked at. Where an output sums over all rows none can be left out: there slices,
    where the kernel has them, stand for rows, and else the whole formula of a large case is evaluated on the device. Of each large output of
    either numbers along an axis of its own are `drawn`, as many as `most` says.
    """

    mathematics: Mathematics
    case: Case
    arrays: Mapping[str, np.ndarray]
    seed: int = 0
    rows_seed: int = 0
    part: str = ""  # of the kernel's PARTS, the whole kernel if empty
    plain: bool = True  # hard inputs repeat values, and equal elements err alike: there a mean says nothing
    exact: Sequence[np.ndarray] = ()
    points: set[str] = field(default_factory=set)  # that the formula has
    by_number: bool = False  # whether it asks for the numbers of rows
    budgets: dict[tuple[str, ...], list[Budget]] = field(default_factory=dict)
    second_budgets: dict[tuple[str, ...], list[Budget]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kernel = self.mathematics
        self.mathematics = modes.of(self.kernel, self.case.mode, list(self.arrays))
        times, sums = oversize(self.mathematics, self.case), self._sums_rows()
        self.large = times > 1
        self.sliced = self.large and sums and modes.slices(self.mathematics, self.arrays) > 1
        if self.sliced:
            self.mathematics = modes.sliced(self.mathematics, self.arrays)
        self.row_axes = [self.mathematics.rows.get(name) for name in self.arrays]  # of the inputs, None without rows
        given = zip(self.arrays.values(), self.row_axes, strict=True)
        heights = [a.shape[axis] for a, axis in given if axis is not None]
        self.height = heights[0] if heights else 0
        self.judged: np.ndarray | None = None
        # of the outputs that are drawn from: the axis, and how many of its numbers
        self.most: dict[int, tuple[int, int]] = {}
        self.drawn: dict[int, np.ndarray] = {}
        most = self.rows_within(times)
        if self.sliced or (most is not None and not sums):
            self.judged = rows.chosen(self.height, most or self.height, self.rows_seed)
        if sums and self.large:
            self.most = self._most()

    def _sums_rows(self) -> bool:
        """Whether some output sums over all rows."""
        outputs = range(len(self.mathematics.outputs))
        return any(self.mathematics.output_axis(number, self.arrays) is None for number in outputs)

    def _most(self) -> dict[int, tuple[int, int]]:
        """Of each large output of a case of which some output sums over all rows, by its number, the longest axis before the last that
        has no slices, and along it how many numbers are looked at."""
        given, slices = [(shape, 0, 0) for shape in self._shapes], 1
        if self.sliced:  # all elements are compared: the judge needs no more than of rows, of all outputs together
            given = [(shape, self.axis(n), len(self._judged_rows)) for n, shape in enumerate(self._shapes)]
            slices = len(given)
        found = ((n, rows.drawn_from(*one, DRAWN_ELEMENTS / slices, FEWEST_ROWS)) for n, one in enumerate(given))
        return {number: most for number, most in found if most is not None}

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the outputs: in a backward mode those of the inputs that they are gradients of, or are judged by."""
        if self.case.mode == "forward":
            return self._shapes_by_formula()
        names = [name.removeprefix("value") for name in self.mathematics.outputs]
        return [self.arrays[n if n in self.arrays else n.removeprefix(modes.UPSTREAM)].shape for n in names]

    def _shapes_by_formula(self) -> list[tuple[int, ...]]:
        """Those of what the formula makes of one row, with all rows."""
        shapes = []
        for number, output in enumerate(self._of_one_row(Exact(np.zeros(1, int)))):
            shape, axis = list(np.shape(output)), self.mathematics.output_axis(number, self.arrays)
            if axis is not None:
                shape[axis] = self.height
            shapes.append(tuple(shape))
        return shapes

    @property
    def partial(self) -> bool:
        """Whether some of the outputs' elements are judged here, and not all."""
        return self.judged is not None or bool(self.most)

    def places(self, number: int) -> dict[int, np.ndarray]:
        """The axes of output `number` along which some numbers are judged, with these."""
        judged = {} if self.judged is None else {self.axis(number): self.judged}
        return judged | self._drawn_places(number)

    def _drawn_places(self, number: int) -> dict[int, np.ndarray]:
        return {self.most[number][0]: self.drawn[number]} if number in self.most else {}

    def taken(self, outputs: Iterable[np.ndarray]) -> list[np.ndarray]:
        """What is judged of whole outputs."""
        return [rows.taken(output, self.places(number)) for number, output in enumerate(outputs)]

    def _taken_of_judged(self, outputs: Iterable[np.ndarray]) -> list[np.ndarray]:
        """The same of outputs that have the judged rows alone."""
        return [rows.taken(output, self._drawn_places(number)) for number, output in enumerate(outputs)]

    @property
    def _judged_rows(self) -> tuple[int, ...]:
        return () if self.judged is None else tuple(map(int, self.judged))

    def rows_within(self, *excess: float) -> int | None:
        """How many rows to look at where the whole is that many times what fits, or None for all."""
        fit = max(FEWEST_SLICES if self.sliced else FEWEST_ROWS, int(self.height / max(1.0, *excess)))
        return None if fit >= self.height else fit

    def axis(self, number: int) -> int:
        """The axis of the rows of output `number`, of a case of which some rows are judged."""
        axis = self.mathematics.output_axis(number, self.arrays)
        assert axis is not None
        return axis

    def _axis_of(self, number: int) -> int:
        """The axis by which output `number` is looked at: of rows, or that which is drawn from."""
        axis = self.mathematics.output_axis(number, self.arrays)
        drawn = self.most and not self.sliced
        return self.most.get(number, (0, 0))[0] if drawn or axis is None else axis

    def dtype(self, number: int) -> str:
        """The dtype in which output `number` is stored."""
        return self.mathematics.output_dtype(number, self.case)

    @cached_property
    def inputs(self) -> list[np.ndarray]:
        """Those of the judged rows, floats in float64."""
        given = zip(self.arrays.values(), self.row_axes, strict=True)
        chosen = [a if self.judged is None or axis is None else np.take(a, self.judged, axis) for a, axis in given]
        return [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in chosen]

    def _evaluate(self, key: Sequence[str], draws: int) -> Evaluations:
        found = evaluations(
            self.mathematics.formula_of(self.part), self.case, self.inputs, key, np.random.default_rng([self.seed, 77]),
            None if self.sliced else self.judged, draws,
        )  # fmt: skip
        if not self.most:
            return found
        for number, (axis, most) in self.most.items():
            told = rows.computed(found.exact[number], axis, self.dtype(number))
            self.drawn[number] = rows.telling(told, most, self.rows_seed + number)
        exact, staged = self._taken_of_judged(found.exact), self._taken_of_judged(found.staged)
        return replace(found, exact=exact, staged=staged, draws=map(self._taken_of_judged, found.draws))

    def reference(self) -> Sequence[np.ndarray]:
        """The outputs in float64, of all rows or of the judged ones."""
        if not self.exact:
            found = self._evaluate((), 0)
            self.exact, self.points, self.by_number = found.exact, set(found.seen), found.by_number
        return self.exact

    def movable_rows(self) -> tuple[dict[int, int], tuple[int, ...]] | None:
        """The axes of rows, of the inputs by their place and of the outputs in order, where rows may stand in any order: their numbers
        do not matter, and every output has them. Else None."""
        outputs = range(len(self.reference()))
        axes = [self.mathematics.output_axis(number, self.arrays) for number in outputs]
        inputs = {place: axis for place, axis in enumerate(self.row_axes) if axis is not None}
        if self.height < 2 or self.sliced or not inputs or None in axes or self.by_number:
            return None
        return inputs, tuple(axis for axis in axes if axis is not None)

    def _of_one_row(self, exact: Exact) -> list[np.ndarray]:
        """The outputs of the first row alone."""
        given = zip(self.inputs, self.row_axes, strict=True)
        with np.errstate(all="ignore"):
            row = [a if axis is None else np.take(a, [0], axis) for a, axis in given]
            return evaluate(self.mathematics.formula_of(self.part), self.case, exact, row)

    def key(self, points: Sequence[str]) -> tuple[str, ...]:
        """Those of the points that make a difference: to store in float32 is no more than every float32 operation does."""
        return tuple(sorted(p for p in points if p in COMPUTED or self.case.dtype != "float32"))

    def allowed(self, points: Sequence[str]) -> list[Budget]:
        """Per output, what a correct program that rounds at `points` may do to the judged rows."""
        if not self.knows(points):
            self.learn(points, self._evaluate(self.key(points), DRAWS))
        return self.budgets[self.key(points)]

    def knows(self, points: Sequence[str]) -> bool:
        """Whether the budgets of programs that round at `points` are kept."""
        return self.key(points) in self.budgets

    def learn(self, points: Sequence[str], found: Evaluations, drawn: Sequence[Sequence[int] | None] = ()) -> None:
        """Keeps those budgets, derived from evaluations of the judged rows that were made here or on the device, which says what it has
        `drawn` of each output."""
        self.drawn |= {number: np.array(chosen) for number, chosen in enumerate(drawn) if chosen is not None}
        self.exact, self.points = self.exact or found.exact, self.points | found.seen
        self.by_number |= found.by_number
        self.budgets[self.key(points)] = self._budgets(found)

    def _budgets(self, found: Evaluations) -> list[Budget]:
        drawn = zip(*found.draws, strict=True)
        return [
            derive(exact, draws, staged, self.dtype(number), self._size(number, exact))
            for number, (exact, draws, staged) in enumerate(zip(found.exact, drawn, found.staged, strict=True))
        ]

    def _size(self, number: int, exact: np.ndarray) -> int:
        """How many elements output `number` has, of which `exact` holds the judged rows."""
        size = exact.size
        for axis, numbers in self.places(number).items():
            size = size // len(numbers) * (self._shapes[number][axis] if self.most else self.height)
        return size

    def judge(self, outputs: Sequence[np.ndarray], points: Sequence[str]) -> Verdict:
        """Compares the outputs (of the storage dtype, in the reference's shapes) of a program that rounds at `points`; of a
        large case the judged rows. The verdict is on the worst of them."""
        if problem := self._problem(outputs, points):
            nan = float("nan")
            return Verdict(float("inf"), nan, nan, nan, (), nan, nan, nan, 0, 0, problem=problem)
        verdict = self._compared(outputs, points, self.allowed(points))
        if verdict.each_ok and not verdict.ok and not self.most:  # which NumPy would have to evaluate in all rows
            verdict = self._compared(outputs, points, self._second_look(points))
        return verdict

    def _second_look(self, points: Sequence[str]) -> list[Budget]:
        """The budgets by more draws: from few, a deviation of all elements together may come out too small by chance."""
        key = self.key(points)
        if key not in self.second_budgets:
            self.second_budgets[key] = self._budgets(self._evaluate(key, SECOND_LOOK_DRAWS))
        return self.second_budgets[key]

    def _compared(self, outputs: Sequence[np.ndarray], points: Sequence[str], budgets: Sequence[Budget]) -> Verdict:
        verdicts = self._each(outputs, budgets)
        worst = max(verdicts, key=lambda v: (not v.ok, v.ratio))
        return replace(
            worst,
            checked=sum(v.checked for v in verdicts),
            undeclared=tuple(sorted(self.points.difference(points))) if self.case.dtype != "float32" else (),
        )

    def each(self, outputs: Sequence[np.ndarray], points: Sequence[str]) -> list[Verdict]:
        """The verdict on each of the outputs, which have the reference's number, shapes and dtypes."""
        return self._each(outputs, self.allowed(points))

    def _each(self, outputs: Sequence[np.ndarray], budgets: Sequence[Budget]) -> list[Verdict]:
        verdicts = []
        for number, (got, budget) in enumerate(zip(self.taken(outputs), budgets, strict=True)):
            got, expected = got.astype(np.float64), self.reference()[number]
            error = errors(got, expected, budget.nonfinite)
            figures = together(error, budget.deviation)
            verdict = worst_of(number, got, expected, error, budget.limit, self.dtype(number), self.places(number))
            verdicts.append(
                replace(
                    verdict,
                    rms=figures.rms,
                    rms_limit=budget.rms_limit,
                    mean=figures.mean,
                    mean_limits=self._mean_limits(budget.mean_limits, budget.rms_limit),
                    some_rows=self.partial,
                )
            )
        return verdicts

    def _mean_limits(self, limits: tuple[float, float], rms_limit: float) -> tuple[float, float]:
        """Between what the mean of all elements may be: on hard inputs no less than their root mean square may be."""
        return limits if self.plain else (-rms_limit, rms_limit)

    def judged_rows(self, points: Sequence[str]) -> Asked:
        """What the device is to evaluate of a large case, so that `learn` need not wait for NumPy."""
        judged = None if self.judged is None else self._judged_rows
        if judged is not None and not self.sliced:
            return self._asked(points, judged)
        outputs = range(len(self._shapes))
        return replace(
            self._asked(points, judged), output_axes=tuple(map(self._axis_of, outputs)), dtypes=tuple(map(self.dtype, outputs)),
            drawn=tuple(map(self.most.get, outputs)), drawn_seed=self.rows_seed,
        )  # fmt: skip

    def seen_whole(self, device: str) -> bool:
        """Whether that device, which evaluates all of a case with an output that sums over all rows, compares all of it as well."""
        return (
            bool(self.most)
            and not self.sliced
            and device != "cpu"
            and sum(map(math.prod, self._shapes)) <= WHOLE_ELEMENTS
        )

    def ask(self, outputs: Sequence[np.ndarray], points: Sequence[str], device: str) -> Asked:
        """What the reference on the device is to look at: all rows, or on a CPU as many as it can in a second or two, and those
        that look unlike the others."""
        flops, moved = self.mathematics.flops(self.case), self.mathematics.moved_bytes(self.case)
        most = self.rows_within(flops / CPU_FLOPS, moved / self.case.itemsize / CPU_ELEMENTS)
        seen, unlike = None, list[int]()
        if device == "cpu" and most is not None:
            seen = tuple(map(int, rows.chosen(self.height, most, self.rows_seed + 1)))
            for number, output in enumerate(outputs):
                unlike += rows.suspicious(output, self.axis(number), UNLIKE_SLICES if self.sliced else UNLIKE_ROWS)
        allowed = self.allowed(points)
        asked = replace(
            self._asked(points, seen),
            unlike=tuple(unlike),
            excess=tuple(budget.excess for budget in allowed),
            whole=bool(self.most) and not self.sliced,
        )
        if device == "cpu":  # it would take as long again
            return asked
        return replace(asked, alike=tuple(b.alike for b in allowed), widths=tuple(b.widths for b in allowed))

    def _asked(self, points: Sequence[str], seen: tuple[int, ...] | None) -> Asked:
        outputs = range(len(self.exact))
        return Asked(
            self.case, self.part, self.key(points), tuple(self.row_axes), tuple(map(self._axis_of, outputs)),
            tuple(map(self.dtype, outputs)), (), self.seed, seen, sliced=self.sliced,
        )  # fmt: skip

    def undrawn(self) -> str:
        """What to say of the elements that were not drawn, or ""."""
        if not self.most:
            return ""
        shapes = self._shapes
        seen = 0
        for number, shape in enumerate(shapes):
            chosen = self.places(number)
            seen += math.prod(len(chosen[axis]) if axis in chosen else length for axis, length in enumerate(shape))
        return (
            f"an output that sums over all rows needs them all: {seen} of {sum(map(math.prod, shapes))} elements were compared, "
            "in rows that were drawn afterwards"
        )

    def unseen(self, asked: Asked) -> int:
        """How many rows neither the judge has seen nor the reference on the device, once that was asked."""
        judged = () if self.most else self._judged_rows  # of slices that are drawn from the judge has seen a part
        return 0 if asked.rows is None else self.height - len({*judged, *asked.rows, *asked.unlike})

    def widened(self, verdict: Verdict, found: Worst, asked: Asked) -> Verdict:
        """The verdict after the reference on the device `found` the worst of the rows that it was asked for (reference.py)."""
        alone = () if asked.rows is None else set(self._judged_rows) - {*asked.rows, *asked.unlike}
        checked = found.checked + verdict.checked * len(alone) // max(1, len(self._judged_rows))
        if found.together:  # of an output that is wrong, if there is one
            output = next((n for n, figures in enumerate(found.together) if not figures.ok), verdict.output)
            figures = found.together[output]
            verdict = replace(
                verdict, output=output, rms=figures.rms, rms_limit=figures.rms_limit, mean=figures.mean,
                mean_limits=self._mean_limits(figures.mean_limits, figures.rms_limit),
            )  # fmt: skip
        if found.ratio <= 1:
            return replace(verdict, checked=checked, ratio=max(verdict.ratio, found.ratio))
        return replace(
            verdict, ratio=found.ratio, max_abs=found.max_abs, ulps=found.ulps, got=found.got, expected=found.expected,
            budget=found.budget, output=found.output, index=found.index, max_rel=float("nan"), checked=checked,
            pattern=found.where,
        )  # fmt: skip

    def _problem(self, outputs: Sequence[np.ndarray], points: Sequence[str]) -> str:
        """What makes a comparison pointless: an unknown point, another number, shape or dtype of outputs."""
        expected = self.reference()
        if undeclared := set(points) - self.points - {FLUSHED}:
            self.points |= every_point(self.kernel, self.case, self.part)
            if undeclared := undeclared - self.points:
                known = ", ".join(sorted(self.points)) or "none"
                where = "VARIANTS" if self.case.mode == "forward" else "BACKWARD"
                return f"{where} names the point {min(undeclared)!r}; the formula has {known}"
        if len(outputs) != len(expected):
            return f"{len(outputs)} outputs, expected {len(expected)}"
        for number, (output, exact) in enumerate(zip(outputs, expected, strict=True)):
            shape = list(exact.shape)
            if number in self.most:
                shape = list(self._shapes[number])
            elif self.judged is not None:
                shape[self.axis(number)] = self.height
            if output.shape != tuple(shape):
                return f"shape {output.shape}, expected {tuple(shape)}"
            if output.dtype != numpy_dtype(self.dtype(number)):
                return f"dtype {output.dtype.name}, expected {self.dtype(number)}"
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
