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

from fusebench import hard, modes
from fusebench.contract import Case, Mathematics
from fusebench.drawing import in_threads
from fusebench.dtypes import numpy_dtype
from fusebench.inputs import make_sets
from fusebench.parity import rows, view
from fusebench.parity.budget import DRAWS, SECOND_LOOK_DRAWS, Budget, derive, errors, together
from fusebench.parity.evaluations import Evaluations, evaluations
from fusebench.parity.rounding import COMPUTED, FLUSHED, Exact, evaluate
from fusebench.parity.verdict import Asked, Verdict, Worst, worst_of


@dataclass
class Judge:
    """The reference and the budgets of one case on one input set, each computed once and kept for all its cells.

    Of a large case some rows are looked at, or slices, or elements (`view`), which `rows_seed` decides. What is `drawn` of large outputs are
    numbers along an axis of their own, of which `view.most` says how many.
    """

    mathematics: Mathematics
    case: Case
    arrays: Mapping[str, np.ndarray]
    seed: int = 0
    rows_seed: int = 0
    part: str = ""  # of the kernel's PARTS, the whole kernel if empty
    kind: str = "plain"  # of the inputs: hard ones repeat values, and equal elements err alike
    exact: Sequence[np.ndarray] = ()
    points: set[str] = field(default_factory=set)  # that the formula has
    by_number: bool = False  # whether it asks for the numbers of rows
    drawn: dict[int, np.ndarray] = field(default_factory=dict)
    budgets: dict[tuple[str, ...], list[Budget]] = field(default_factory=dict)
    second_budgets: dict[tuple[str, ...], list[Budget]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kernel = self.mathematics
        mathematics = modes.of(self.kernel, self.case.mode, list(self.arrays))
        self.view = view.of(mathematics, self.case, self.arrays, self.rows_seed, lambda: self._shapes)
        self.mathematics = self.view.mathematics

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the outputs: in a backward mode those of the inputs that they are gradients of, or are judged by."""
        if self.case.mode == "forward":
            return self._shapes_by_formula()
        names = [name.replace(modes.VALUE, modes.UPSTREAM, 1) for name in self.mathematics.outputs]
        return [self.arrays[n if n in self.arrays else n.removeprefix(modes.UPSTREAM)].shape for n in names]

    def _shapes_by_formula(self) -> list[tuple[int, ...]]:
        """Those of what the formula makes of one row, with all rows."""
        shapes = []
        for number, output in enumerate(self._of_one_row(Exact(np.zeros(1, int)))):
            shape, axis = list(np.shape(output)), self.mathematics.output_axis(number, self.arrays)
            if axis is not None:
                shape[axis] = self.view.height
            shapes.append(tuple(shape))
        return shapes

    @property
    def large(self) -> bool:
        """Whether the judge alone would take too long, or does not see all."""
        return self.view.times > 1

    @property
    def partial(self) -> bool:
        """Whether some of the outputs' elements are judged here, and not all."""
        return self.view.judged is not None or bool(self.view.most)

    def places(self, number: int) -> dict[int, np.ndarray]:
        """The axes of output `number` along which some numbers are judged, with these."""
        return self.view.judged_places(number) | self._drawn_places(number)

    def _drawn_places(self, number: int) -> dict[int, np.ndarray]:
        return {self.view.most[number][0]: self.drawn[number]} if number in self.view.most else {}

    def taken(self, outputs: Iterable[np.ndarray]) -> list[np.ndarray]:
        """What is judged of whole outputs."""
        return [rows.taken(output, self.places(number)) for number, output in enumerate(outputs)]

    def _taken_of_judged(self, outputs: Iterable[np.ndarray]) -> list[np.ndarray]:
        """The same of outputs that have the judged rows alone."""
        return [rows.taken(output, self._drawn_places(number)) for number, output in enumerate(outputs)]

    def dtype(self, number: int) -> str:
        """The dtype in which output `number` is stored."""
        return self.mathematics.output_dtype(number, self.case)

    @cached_property
    def inputs(self) -> list[np.ndarray]:
        """Those of the judged rows, floats in float64."""
        given, judged = zip(self.arrays.values(), self.view.row_axes, strict=True), self.view.judged
        chosen = [a if judged is None or axis is None else np.take(a, judged, axis) for a, axis in given]
        return [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in chosen]

    def _evaluate(self, key: Sequence[str], draws: int) -> Evaluations:
        found = evaluations(
            self.mathematics.formula_of(self.part), self.case, self.inputs, key, np.random.default_rng([self.seed, 77]),
            self.view.judged if self.view.some else None, draws,
        )  # fmt: skip
        if not self.view.most:
            return found
        for number, (axis, most) in self.view.most.items():
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

    def evaluated_again(self) -> Sequence[np.ndarray]:
        """What `reference` was, evaluated once more on the same inputs."""
        return self._evaluate((), 0).exact

    def movable_rows(self) -> tuple[dict[int, int], tuple[int, ...]] | None:
        """The axes of rows, of the inputs by their place and of the outputs in order, where rows may stand in any order: their numbers
        do not matter, and every output has them. Else None."""
        outputs = range(len(self.reference()))
        axes = [self.mathematics.output_axis(number, self.arrays) for number in outputs]
        inputs = {place: axis for place, axis in enumerate(self.view.row_axes) if axis is not None}
        if self.view.height < 2 or self.view.sliced or not inputs or None in axes or self.by_number:
            return None
        return inputs, tuple(axis for axis in axes if axis is not None)

    def _of_one_row(self, exact: Exact) -> list[np.ndarray]:
        """The outputs of the first row alone."""
        given = zip(self.inputs, self.view.row_axes, strict=True)
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
        """Of each output, by a core each: those of gradients have millions of elements, and take seconds."""
        sizes = [self._size(number, exact) for number, exact in enumerate(found.exact)]
        draws = list(zip(*found.draws, strict=True))

        def of_output(number: int) -> Budget:
            return derive(found.exact[number], draws[number], found.staged[number], self.dtype(number), sizes[number])

        return in_threads(of_output, range(len(sizes)))

    def _size(self, number: int, exact: np.ndarray) -> int:
        """How many elements output `number` has, of which `exact` holds the judged rows."""
        size = exact.size
        for axis, numbers in self.places(number).items():
            size = size // len(numbers) * self.view.length(number, axis)
        return size

    def judge(self, outputs: Sequence[np.ndarray], points: Sequence[str]) -> Verdict:
        """Compares the outputs (of the storage dtype, in the reference's shapes) of a program that rounds at `points`; of a
        large case the judged rows. The verdict is on the worst of them."""
        if problem := self._problem(outputs, points):
            nan = float("nan")
            return Verdict(float("inf"), nan, nan, nan, (), nan, nan, nan, 0, 0, problem=problem)
        verdict = self._compared(outputs, points, self.allowed(points))
        if verdict.each_ok and not verdict.ok and not self.view.most:  # which NumPy would have to evaluate in all rows
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
                    rms_limit=self._rms_limit(budget.rms_limit),
                    mean=figures.mean,
                    mean_limits=self._mean_limits(budget.mean_limits, budget.rms_limit),
                    some_rows=self.partial,
                )
            )
        return verdicts

    def _mean_limits(self, limits: tuple[float, float], rms_limit: float) -> tuple[float, float]:
        """Between what the mean of all elements may be: on hard inputs no less than their root mean square may be."""
        most = self._rms_limit(rms_limit)
        return limits if self.kind == "plain" else (-most, most)

    def _rms_limit(self, limit: float) -> float:
        """Up to what their root mean square may be: anything where all elements of a row may err alike, of which there are too few."""
        return math.inf if self.kind in hard.ALIKE else limit

    def judged_rows(self, points: Sequence[str]) -> Asked:
        """What the device is to evaluate of a large case, so that `learn` need not wait for NumPy."""
        asked = self._asked(points, None if self.view.judged is None else self.view.numbers)
        if self.view.some:
            return asked
        outputs = range(len(self._shapes))
        return replace(
            asked, output_axes=tuple(map(self.view.along, outputs)), dtypes=tuple(map(self.dtype, outputs)),
            drawn=tuple(map(self.view.most.get, outputs)), drawn_seed=self.rows_seed,
        )  # fmt: skip

    def seen_whole(self, device: str) -> bool:
        """Whether that device, which evaluates all of a case with an output that sums over all rows, compares all of it as well."""
        return self.view.whole and device != "cpu" and sum(map(math.prod, self._shapes)) <= view.WHOLE_ELEMENTS

    def ask(self, outputs: Sequence[np.ndarray], points: Sequence[str], device: str) -> Asked:
        """What the reference on the device is to look at: all rows, or on a CPU as many as it can in a second or two, and those
        that look unlike the others."""
        allowed, whole = self.allowed(points), self.view.whole
        asked = replace(self._asked(points, None), excess=tuple(budget.excess for budget in allowed), whole=whole)
        if device != "cpu":
            return replace(asked, alike=tuple(b.alike for b in allowed), widths=tuple(b.widths for b in allowed))
        # all elements together are not looked at: it would take as long again
        seen = self.view.on_cpu(self.case)
        return replace(asked, rows=seen, unlike=() if seen is None else self.view.unlike_others(outputs))

    def _asked(self, points: Sequence[str], seen: tuple[int, ...] | None) -> Asked:
        outputs = range(len(self.exact))
        return Asked(
            self.case, self.part, self.key(points), tuple(self.view.row_axes), tuple(map(self.view.along, outputs)),
            tuple(map(self.dtype, outputs)), (), self.seed, seen, sliced=self.view.sliced,
        )  # fmt: skip

    def undrawn(self) -> str:
        """What to say of the elements that were not drawn, or ""."""
        if not self.view.most:
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
        judged = () if self.view.most else self.view.numbers  # of slices that are drawn from the judge has seen a part
        return 0 if asked.rows is None else self.view.height - len({*judged, *asked.rows, *asked.unlike})

    def widened(self, verdict: Verdict, found: Worst, asked: Asked) -> Verdict:
        """The verdict after the reference on the device `found` the worst of the rows that it was asked for (reference.py)."""
        judged = self.view.numbers
        alone = () if asked.rows is None else set(judged) - {*asked.rows, *asked.unlike}
        checked = found.checked + verdict.checked * len(alone) // max(1, len(judged))
        if found.together:  # of an output that is wrong, if there is one
            output = next((n for n, figures in enumerate(found.together) if not figures.ok), verdict.output)
            figures = found.together[output]
            verdict = replace(
                verdict, output=output, rms=figures.rms, rms_limit=self._rms_limit(figures.rms_limit), mean=figures.mean,
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
            for axis in self.places(number):
                shape[axis] = self.view.length(number, axis)
            if output.shape != tuple(shape):
                return f"shape {output.shape}, expected {tuple(shape)}"
            if output.dtype != numpy_dtype(self.dtype(number)):
                return f"dtype {output.dtype.name}, expected {self.dtype(number)}"
        return ""


def every_point(mathematics: Mathematics, case: Case, part: str = "") -> set[str]:
    """The names of the formula's points, whichever options lead to them, by evaluating the smallest named case."""
    seen: set[str] = set()
    for option, values in {"": ("",), **mathematics.options}.items():
        for value in values:
            changed = replace(case, options={**case.options, **({option: value} if option else {})})
            judge = of_smallest(mathematics, changed, part)
            judge.reference()
            seen |= judge.points
    return seen


def of_smallest(mathematics: Mathematics, case: Case, part: str) -> Judge:
    """The judge of the smallest named case, all else as in `case`."""
    sizes = min(mathematics.cases.values(), key=lambda sizes: mathematics.moved_bytes(replace(case, sizes=sizes)))
    smallest = replace(case, sizes=sizes)
    return Judge(mathematics, smallest, make_sets(mathematics, smallest, 0, 1)[0], part=part)
