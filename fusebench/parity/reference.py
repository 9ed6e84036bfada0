"""The rows of an output that are too many for the judge: reference, noise and budget on the device, a chunk of rows at a time,
each element held to the noise of its own row.

It runs in a worker of its own (workers/reference.py), which alone may import a kernel.py. Formula and rule are the same NumPy
text as the judge's (tensor.py). On a CPU the chunks go to threads, one for each core.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from fusebench.contract import Case
from fusebench.dtypes import FORMATS
from fusebench.parity.budget import (
    SECOND_LOOK_DRAWS,
    Neighbours,
    Sums,
    all_together,
    equal,
    limit_of,
    limits,
    reach_of_few,
    still,
    together,
)  # fmt: skip
from fusebench.parity.elements import finite, spacing, stored
from fusebench.parity.evaluations import Evaluations
from fusebench.parity.pieces import (
    Formula,
    Held,
    chunks_of,
    elements_of_a_row,
    evaluations_of,
    formula_of,
    held,
    inputs_of,
    largest_result,
    put,
    take,
)  # fmt: skip
from fusebench.parity.rows import computed, telling
from fusebench.parity.tensor import Random, Tensor
from fusebench.parity.verdict import Asked, Together, Worst

# Draws, and up to how many elements of intermediate results they are made; the last for more.
DRAWS = {"cuda": ((16, 5e7), (8, 1e8), (4, np.inf)), "cpu": ((16, 2e5), (4, np.inf))}
# Few draws may miss the noise of one element in 10⁸: rows that seem wrong get more before they are called so, if they are not many: so many
# rows, or of many rows a share that takes as long as another evaluation of all does. A few slices take several.
SECOND_LOOK_ROWS, SECOND_LOOK_SHARE, SECOND_LOOK_SLICES, SECOND_LOOK_SEED = 32, 1 / SECOND_LOOK_DRAWS, 4, 2**33
JUDGED_SEED = 2**32  # the judged rows have other noise than any chunk, whose seed is its first row
KEPT_ELEMENTS = 3e8  # of budgets, for the other outputs of the same inputs: 5 GB


@dataclass(frozen=True)
class Expected:
    """What some rows of one output may be: their exact value, how far off an element may be, where rounding on the way may
    leave inf, -inf or NaN; and for all together, if they are asked for, the standard deviation of each element's error, or of those
    that are `moving`, and the `figures` of the draws."""

    rows: np.ndarray
    exact: Any
    limit: Any
    overflow: dict[float, Any]
    deviation: Any = None
    figures: Sequence[Sums] = ()
    moving: Any = None


Known = MutableMapping[Any, list[list[Expected]]]  # by what was asked, chunk by chunk, output by output


def check(asked: Asked, arrays: Sequence[np.ndarray], got: Sequence[np.ndarray], device: str, known: Known) -> Worst:
    """Compares the outputs `got`, of the storage dtype, with the formula of the inputs `arrays`. `known` keeps what was computed,
    if it is not too much, for other outputs of the same inputs."""
    height = next((a.shape[axis] for a, axis in zip(arrays, asked.row_axes, strict=True) if axis is not None), 1)
    rows = np.arange(height) if asked.rows is None else np.array(asked.rows)
    key = (asked.points, asked.part, asked.rows)
    chunks: Any = known.get(key)
    if chunks is None:
        chunks = _expected(asked, arrays, rows, got, device)
        if sum(o.size for o in got) * len(rows) <= KEPT_ELEMENTS * height:
            known[key] = chunks = list(chunks)
    found, sums, wrong = [], [], set[int]()
    outputs = [held(o, device) for o in got]
    for chunk in chunks:
        compared, of_chunk = _compared(asked, chunk, outputs, device, wrong)
        found.append(compared)
        sums.append(of_chunk)
    if others := sorted(set(asked.unlike) - set(map(int, rows))):
        chunks = _expected(asked, arrays, np.array(others), got, device)
        found += [_compared(asked, chunk, outputs, device, wrong)[0] for chunk in chunks]
    worst = reduce(_worse, found)
    few = SECOND_LOOK_SLICES if asked.sliced else max(SECOND_LOOK_ROWS, SECOND_LOOK_SHARE * len(rows))
    if 0 < len(wrong) <= few:
        worst = replace(_second_look(asked, arrays, sorted(wrong), got, device), checked=worst.checked)
    return replace(worst, together=_together(asked, sums))


def _second_look(
    asked: Asked, arrays: Sequence[np.ndarray], rows: Sequence[int], got: Sequence[np.ndarray], device: str
) -> Worst:
    """The worst element of a few rows, by many draws."""
    single = replace(asked, alike=())
    chunks = _expected(single, arrays, np.array(rows), got, device, SECOND_LOOK_DRAWS, SECOND_LOOK_SEED)
    outputs = [held(o, device) for o in got]
    return reduce(_worse, [_compared(single, chunk, outputs, device, set())[0] for chunk in chunks])


def evaluated(
    asked: Asked, arrays: Sequence[np.ndarray], device: str, draws: int
) -> tuple[list[np.ndarray], Evaluations, tuple[tuple[int, ...] | None, ...]]:
    """The evaluations of the rows of `asked`: of each output its exact value, that with the points rounded and the draws, in float64,
    stacked; what else they say of the formula; and of each output the numbers that were drawn, None for all."""
    found = _in_parts(asked, arrays, device, draws)
    places: list[tuple[int, np.ndarray] | None] = [None] * len(found.exact)
    for number, (at, exact) in enumerate(zip(asked.drawn, found.exact, strict=False)):
        if at is not None:
            told = computed(exact, at[0], asked.dtypes[number])
            places[number] = at[0], telling(told, at[1], asked.drawn_seed + number)
    kept = [_drawn(evaluation, places) for evaluation in (found.exact, found.staged)]
    kept += (_drawn(evaluation, places) for evaluation in found.draws)
    stacked = [torch.stack(output).cpu().numpy() for output in zip(*kept, strict=True)]
    return stacked, found, tuple(None if at is None else tuple(map(int, at[1])) for at in places)


def _in_parts(asked: Asked, arrays: Sequence[np.ndarray], device: str, draws: int) -> Evaluations:
    """The evaluations of the rows of `asked`, of slices as many at a time as memory holds."""
    formula, inputs, seed = formula_of(asked), inputs_of(asked, arrays, device), asked.seed + JUDGED_SEED
    rows = None if asked.rows is None else np.array(asked.rows)
    chunks: Sequence[np.ndarray | None] = [rows]
    if rows is not None and asked.sliced:
        chunks = chunks_of(rows, elements_of_a_row(asked, formula, rows, inputs), device)
    parts = [  # what all elements of a draw share is the same in each
        evaluations_of(asked, formula, inputs(some), some, Random(device, seed + n, seed), draws)
        for n, some in enumerate(chunks)
    ]
    if len(parts) == 1:
        return parts[0]
    axes = asked.output_axes
    exact, staged, *drawn = (
        [Tensor(torch.cat([o.tensor for o in output], axis)) for axis, output in zip(axes, zip(*evaluation, strict=True), strict=True)]
        for evaluation in zip(*((part.exact, part.staged, *part.draws) for part in parts), strict=True)
    )  # fmt: skip
    return Evaluations(exact, staged, drawn, parts[0].seen, parts[0].by_number)


def rehearse(device: str) -> None:
    """Checks a few numbers by all kinds of noise. A GPU loads the code of an operator when it is first used: half a second in all, which
    the first cell would wait for (seen on an H200: 0.65 s for the rows of its judge, 0.19 of the second's)."""

    def formula(case: Case, r: Any, x: Any) -> Any:
        scores = r.round("scores", r.dot(x, x.swapaxes(-1, -2)) * 0.1)
        likely = r.function(np.exp(np.where(scores < 0, -np.inf, scores) - scores.max(axis=-1, keepdims=True)))
        return (r.dot(r.compute(likely / r.sum(likely, axis=-1, keepdims=True)), x),)

    case = Case("rehearsal", {}, "bfloat16")
    asked = Asked(case, "", ("scores",), (1,), (1,), ("bfloat16",), (1.0,), 0, alike=(16.0,), widths=((1.0, 1.0),))
    x = Tensor(torch.linspace(-2, 2, 2 * 512 * 64, dtype=torch.float64, device=device).reshape(2, 512, 64))
    outputs = [np.zeros(x.shape, np.float32)]
    expected = list(_evaluated(asked, formula, [x], np.arange(512), Random(device, 0), min(DRAWS[device])[0], outputs))
    _compared(asked, expected, [held(outputs[0], device)], device, set())


def _drawn(outputs: Sequence[Any], places: Sequence[tuple[int, np.ndarray] | None]) -> list[torch.Tensor]:
    """Of each output what is to come back: not all of what sums over all rows."""
    return [
        o.tensor if at is None else o.tensor.index_select(at[0], torch.tensor(at[1], device=o.tensor.device))
        for o, at in zip(outputs, places, strict=True)
    ]


def _expected(
    asked: Asked, arrays: Sequence[np.ndarray], rows: np.ndarray, got: Sequence[np.ndarray], device: str, draws: int = 0, seed: int = 0
) -> Iterator[list[Expected]]:  # fmt: skip
    """What the outputs may be, a chunk of the rows at a time, by that many draws, or as many as time allows."""
    formula, inputs = formula_of(asked), inputs_of(asked, arrays, device)

    def expected(chosen: np.ndarray | None) -> list[Expected]:
        random = Random(device, asked.seed + seed + (0 if chosen is None else int(chosen[0])))
        return list(_evaluated(asked, formula, inputs(chosen), chosen, random, draws, got))

    if asked.whole:
        largest = largest_result(asked, formula, inputs(None))
        draws = draws or next(n for n, most in DRAWS[device] if largest <= most)
        yield expected(None)
        return
    size = elements_of_a_row(asked, formula, rows, inputs)
    draws = draws or next(n for n, most in DRAWS[device] if size * len(rows) <= most)
    chunks = chunks_of(rows, size, device)
    if device == "cpu":
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            yield from threads.map(expected, chunks)
    else:
        yield from map(expected, chunks)


def _evaluated(
    asked: Asked, formula: Formula, inputs: list[Any], rows: np.ndarray | None, random: Random, draws: int, got: Sequence[np.ndarray]
) -> Iterator[Expected]:  # fmt: skip
    """What each output may be in those rows, or in all."""
    found = evaluations_of(asked, formula, inputs, rows, random, draws)
    keep = bool(asked.alike)
    seen = [_Seen(exact, dtype) for exact, dtype in zip(found.exact, asked.dtypes, strict=True)]
    for ends in found.draws:
        for end, of_output in zip(ends, seen, strict=True):
            of_output.draw(end, keep)
    for number, (staged, of_output) in enumerate(zip(found.staged, seen, strict=True)):
        of_output.see(staged, keep)
        exact, dtype, own = of_output.exact, of_output.dtype, of_output.total / draws
        apart = still(exact, partial(_unmoved, exact, own, staged)) if asked.whole or asked.sliced else None
        moving = None if apart is None else ~apart
        part = _all if moving is None else operator.itemgetter(moving)
        of_moving, own = part(exact), part(own)
        neighbours = Neighbours(of_moving)
        reach = reach_of_few(neighbours, of_moving, own, draws, part(staged), asked.excess[number], got[number].size)
        limit = limit_of(finite(of_moving), reach if dtype in FORMATS else 0.0 * of_moving, dtype)
        if moving is not None:
            limit = _among(limit, moving, limit_of(finite(exact), 0.0 * finite(exact), dtype))
        deviation, figures = None, list[Sums]()
        if keep:
            ends, squares = ([part(value) for value in values] for values in (of_output.ends, of_output.squares))
            overflow = {value: part(where) for value, where in of_output.overflow.items()}
            deviation, figures = all_together(
                of_moving, ends, squares, neighbours, asked.alike[number], dtype, overflow
            )
            deviation = deviation.astype(np.float32)
        chosen = np.arange(exact.shape[asked.output_axes[number]] if exact.ndim else 1) if rows is None else rows
        yield Expected(chosen, exact, limit.astype(np.float32), of_output.overflow, deviation, figures, moving)


def _all(values: Any) -> Any:
    return values


def _unmoved(exact: Any, own: Any, staged: Any) -> Any:
    return (own == 0) & (staged == exact)


def _among(values: Any, where: Any, others: Any) -> Any:
    """`values` where `where` says so, in order, and elsewhere the `others`."""
    found = others.tensor.clone()
    found[where.tensor] = values.tensor
    return Tensor(found)


@dataclass
class _Seen:
    """What the evaluations of one output come to: the sum of the draws' squared errors, and where some overflow; all of them only
    if they are to be kept."""

    exact: Any
    dtype: str
    total: Any = 0.0
    overflow: dict[float, Any] = field(default_factory=dict)
    squares: list[Any] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)

    def draw(self, end: Any, keep: bool) -> None:
        square = finite(end - self.exact) ** 2
        self.total = self.total + square
        if keep:
            self.squares.append(square)
        self.see(end, keep)

    def see(self, end: Any, keep: bool) -> None:
        if keep or not (abs(end) < _largest(self.dtype)).all():
            end = stored(end, self.dtype)
            if not np.isfinite(end).all():
                for value in (np.inf, -np.inf, np.nan):
                    self.overflow[value] = self.overflow.get(value, False) | equal(end, value)
        if keep:
            self.ends.append(end)


def _compared(
    asked: Asked, chunk: Sequence[Expected], got: Sequence[Held], device: str, wrong_rows: set[int]
) -> tuple[Worst, list[list[Sums]]]:
    """The worst element of the rows of a chunk; and of each output, if they are asked for, the figures of the draws and, last, its own.
    The rows that are wrong are added to `wrong_rows`."""
    found, wrong, sums = Worst(), set[int](), []
    for number, expected in enumerate(chunk):
        axis, dtype = asked.output_axes[number], asked.dtypes[number]
        rows = got[number] if asked.whole else take(got[number], expected.rows, axis)
        output = Tensor(put(rows, device))
        error = _error(output, expected, dtype)
        found = _worse(found, _worst_of(number, axis, output, error, expected, dtype, wrong))
        if expected.deviation is not None:
            moved = error if expected.moving is None else error[expected.moving]
            sums.append([*expected.figures, together(moved, expected.deviation)])
    wrong_rows |= wrong
    return (replace(found, rows=(len(wrong), min(wrong), max(wrong))) if wrong else found), sums


def _together(asked: Asked, chunks: Sequence[list[list[Sums]]]) -> tuple[Together, ...]:
    """Of each output all elements together, from the figures of its chunks."""
    found = []
    for widths, of_output in zip(asked.widths, zip(*chunks, strict=True), strict=True):
        *figures, own = [reduce(operator.add, sums) for sums in zip(*of_output, strict=True)]
        rms_limit, mean_limits = limits(figures, widths)
        found.append(Together(own.rms, rms_limit, own.mean, mean_limits))
    return tuple(found)


def _error(got: Any, expected: Expected, dtype: str) -> Any:
    """got - exact: 0 where rounding on the way may leave that, infinite where it is not finite for no reason."""
    exact, limit, highest = expected.exact, expected.limit, _largest(dtype)
    right = equal(got, exact) | ((got == np.inf) & (exact + limit > highest))
    right = right | ((got == -np.inf) & (exact - limit < -highest))
    for value, where in expected.overflow.items():
        right = right | (where & equal(got, value))
    difference = got - exact
    return np.where(right, 0.0, np.where(np.isfinite(difference), difference, np.inf))


def _worst_of(
    number: int, axis: int, got: Any, error: Any, expected: Expected, dtype: str, wrong_rows: set[int]
) -> Worst:
    """The worst element of output `number`; the rows that are wrong are added to `wrong_rows`."""
    exact, limit = expected.exact, expected.limit
    if not got.size:
        return Worst()
    error = abs(error)
    ratio = error / np.maximum(limit, float(np.finfo(np.float32).tiny))
    wrong = (ratio > 1).tensor
    if beyond := int(wrong.sum()):
        others = tuple(a for a in range(wrong.ndim) if a != axis % wrong.ndim)
        hit = wrong.any(dim=others) if others else wrong
        wrong_rows.update(map(int, expected.rows[hit.cpu().numpy()]))
    place = tuple(int(i) for i in np.unravel_index(int(ratio.tensor.argmax()), ratio.shape))
    index = tuple(int(expected.rows[i]) if d == axis % len(place) else i for d, i in enumerate(place))
    step = float(spacing(exact[place], dtype)) or float("nan")
    return Worst(
        float(ratio[place]), float(error.max()), float(error[place]) / step, index, float(got[place]), float(exact[place]),
        float(limit[place]), number, beyond, checked=got.size,
    )  # fmt: skip


def _worse(a: Worst, b: Worst) -> Worst:
    """The worst element of both."""
    worst = a if a.ratio >= b.ratio else b
    hit = [w.rows for w in (a, b) if w.rows[0]]
    rows = (
        (sum(n for n, _, _ in hit), min(f for _, f, _ in hit), max(last for _, _, last in hit)) if hit else worst.rows
    )
    return replace(
        worst, max_abs=max(a.max_abs, b.max_abs), beyond=a.beyond + b.beyond, rows=rows, checked=a.checked + b.checked
    )  # fmt: skip


def _largest(dtype: str) -> float:
    return FORMATS[dtype][2] if dtype in FORMATS else np.inf
