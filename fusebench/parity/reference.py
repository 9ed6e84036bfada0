"""The rows of an output that are too many for the judge: reference, noise and budget on the device, a chunk of rows at a time,
each element held to the noise of its own row.

It runs in a worker of its own (workers/reference.py), which alone may import a kernel.py. Formula and rule are the same NumPy
text as the judge's (tensor.py). On a CPU the chunks go to threads, one for each core.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch

from fusebench.backends import torch as backend
from fusebench.contract import Case, Device
from fusebench.discovery import normalised
from fusebench.dtypes import FORMATS
from fusebench.parity.budget import equal, finite, limit_of, reach_of_few
from fusebench.parity.evaluations import evaluations
from fusebench.parity.rounding import Exact, evaluate, spacing, stored
from fusebench.parity.tensor import Random, Tensor
from fusebench.parity.verdict import Asked, Worst

Formula = Callable[..., Any]

# Of the largest intermediate result: 0.3 GB in float64 on a GPU, and some of them live.
CHUNK_ELEMENTS = {"cuda": 4e7, "cpu": 5e5}
# Draws, and up to how many elements of intermediate results they are made; the last for more.
DRAWS = {"cuda": ((16, 1e8), (8, 5e8), (4, np.inf)), "cpu": ((16, 2e5), (4, np.inf))}
JUDGED_SEED = 2**32  # the judged rows have other noise than any chunk, whose seed is its first row
KEPT_ELEMENTS = 3e8  # of budgets, for the other outputs of the same inputs: 4 GB


@dataclass(frozen=True)
class Expected:
    """What some rows of one output may be: their exact value, how far off an element may be, and where rounding on the way may
    leave inf, -inf or NaN."""

    rows: np.ndarray
    exact: Any
    limit: Any
    overflow: dict[float, Any]


Known = MutableMapping[Any, list[list[Expected]]]  # by what was asked, chunk by chunk, output by output


def check(asked: Asked, arrays: Sequence[np.ndarray], got: Sequence[np.ndarray], device: str, known: Known) -> Worst:
    """Compares the outputs `got`, of the storage dtype, with the formula of the inputs `arrays`. `known` keeps what was computed,
    if it is not too much, for other outputs of the same inputs."""
    height = next(a.shape[axis] for a, axis in zip(arrays, asked.row_axes, strict=True) if axis is not None)
    rows = np.arange(height) if asked.rows is None else np.array(asked.rows)
    key = (asked.points, asked.part, asked.rows)
    chunks: Any = known.get(key)
    if chunks is None:
        chunks = _expected(asked, arrays, rows, got, device)
        if sum(o.size for o in got) * len(rows) <= KEPT_ELEMENTS * height:
            known[key] = chunks = list(chunks)
    found = [_compared(asked, chunk, got, device) for chunk in chunks]
    if others := sorted(set(asked.unlike) - set(map(int, rows))):
        found += [
            _compared(asked, chunk, got, device) for chunk in _expected(asked, arrays, np.array(others), got, device)
        ]
    return reduce(_worse, found)


def evaluated(
    asked: Asked, arrays: Sequence[np.ndarray], device: str, draws: int
) -> tuple[list[np.ndarray], frozenset[str]]:
    """The evaluations of the rows of `asked`, all at once: of each output its exact value, that with the points rounded and the
    draws, in float64, stacked; and the points that the formula has."""
    rows = np.array(asked.rows)
    random = Random(device, asked.seed + JUDGED_SEED)
    found = evaluations(
        _formula(asked), asked.case, _inputs(asked, arrays, device)(rows), asked.points, random, rows, draws,
        lambda o: _tensor(o, device),
    )  # fmt: skip
    outputs = zip(found.exact, found.staged, *found.draws, strict=True)
    return [torch.stack([e.tensor for e in output]).cpu().numpy() for output in outputs], found.seen


def _formula(asked: Asked) -> Formula:
    mathematics = normalised(importlib.import_module(f"implementations.{asked.case.kernel}.kernel"))
    return mathematics.formula_of(asked.part)


def _inputs(asked: Asked, arrays: Sequence[np.ndarray], device: str) -> Callable[[np.ndarray], list[Any]]:
    """What gives the formula's inputs of some rows; those without rows go to the device once."""
    whole = [
        _argument(np.array(a), device) if axis is None else None for a, axis in zip(arrays, asked.row_axes, strict=True)
    ]

    def inputs(chosen: np.ndarray) -> list[Any]:
        return [
            w if axis is None else _argument(_take(a, chosen, axis), device)
            for a, w, axis in zip(arrays, whole, asked.row_axes, strict=True)
        ]

    return inputs


def _expected(
    asked: Asked, arrays: Sequence[np.ndarray], rows: np.ndarray, got: Sequence[np.ndarray], device: str
) -> Iterator[list[Expected]]:
    """What the outputs may be, a chunk of the rows at a time."""
    formula, inputs = _formula(asked), _inputs(asked, arrays, device)

    def expected(chosen: np.ndarray) -> list[Expected]:
        random = Random(device, asked.seed + int(chosen[0]))
        return [
            Expected(chosen, exact, limit_of(finite(exact), reach, dtype).astype(np.float32), overflow)
            for dtype, (exact, reach, overflow) in zip(
                asked.dtypes, _evaluated(asked, formula, inputs(chosen), chosen, random, draws, got), strict=True
            )
        ]

    ends = np.unique(rows[[*range(len(rows))[:2], *range(len(rows))[-2:]]])  # a causal row sees only what is before it
    size = _elements_of_a_row(asked.case, formula, ends, inputs(ends))
    draws = next(n for n, most in DRAWS[device] if size * len(rows) <= most)
    step = max(1, int(CHUNK_ELEMENTS[device] / size))
    chunks = [rows[first : first + step] for first in range(0, len(rows), step)]
    if device == "cpu":
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            yield from threads.map(expected, chunks)
    else:
        yield from map(expected, chunks)


def _evaluated(
    asked: Asked, formula: Formula, inputs: list[Any], rows: np.ndarray, random: Random, draws: int, got: Sequence[np.ndarray]
) -> Iterator[tuple[Tensor, Any, dict[float, Any]]]:  # fmt: skip
    """Of each output: its exact value, how far off the value before its last rounding may be, and the places of overflow."""
    found = evaluations(
        formula, asked.case, inputs, asked.points, random, rows, draws, lambda o: _tensor(o, random.device)
    )  # fmt: skip
    own: list[Any] = [0.0] * len(found.exact)
    overflow: list[dict[float, Any]] = [{} for _ in found.exact]
    for draw, ends in enumerate(itertools.chain(found.draws, [found.staged])):
        for number, (end, e) in enumerate(zip(ends, found.exact, strict=True)):
            if draw < draws:
                own[number] = own[number] + finite(end - e) ** 2
            if not (abs(end) < _largest(asked.dtypes[number])).all():
                end = stored(end, asked.dtypes[number])
                for value in (np.inf, -np.inf, np.nan):
                    overflow[number][value] = overflow[number].get(value, False) | equal(end, value)
    for number, (e, o, s) in enumerate(zip(found.exact, own, found.staged, strict=True)):
        reach = reach_of_few(e, o / draws, draws, s, asked.excess[number], got[number].size)
        yield e, reach if asked.dtypes[number] in FORMATS else 0.0 * e, overflow[number]


def _compared(asked: Asked, chunk: Sequence[Expected], got: Sequence[np.ndarray], device: str) -> Worst:
    """The worst element of the rows of a chunk."""
    found, wrong = Worst(), set[int]()
    for number, expected in enumerate(chunk):
        axis = asked.output_axes[number]
        output = Tensor(_put(_take(got[number], expected.rows, axis), device))
        found = _worse(found, _worst_of(number, axis, output, expected, asked.dtypes[number], wrong))
    return replace(found, rows=(len(wrong), min(wrong), max(wrong))) if wrong else found


def _worst_of(number: int, axis: int, got: Any, expected: Expected, dtype: str, wrong_rows: set[int]) -> Worst:
    """The worst element of output `number`; the rows that are wrong are added to `wrong_rows`."""
    exact, limit = expected.exact, expected.limit
    if not got.size:
        return Worst()
    highest = _largest(dtype)
    right = equal(got, exact) | ((got == np.inf) & (exact + limit > highest))
    right = right | ((got == -np.inf) & (exact - limit < -highest))
    for value, where in expected.overflow.items():
        right = right | (where & equal(got, value))
    difference = abs(got - exact)
    error = np.where(right, 0.0, np.where(np.isfinite(difference), difference, np.inf))
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


def _elements_of_a_row(case: Case, formula: Formula, rows: np.ndarray, inputs: list[Any]) -> float:
    """How many elements the largest intermediate result has for each row."""
    sized = _Sized(rows)
    outputs = evaluate(formula, case, sized, inputs)
    return max(1.0, sized.largest / len(rows), *(np.size(o) / len(rows) for o in outputs))


class _Sized(Exact):
    """Notes how large the values are that pass the points."""

    largest = 0

    def round(self, point: str, value: Any) -> Any:
        self.largest = max(self.largest, np.size(value))
        return value

    def function(self, value: Any, spacings: float = 0.0) -> Any:
        return self.round("", value)

    def compute(self, value: Any) -> Any:
        return self.round("", value)

    def dot(self, a: Any, b: Any) -> Any:
        return self.round("", a @ b)


def _argument(array: np.ndarray, device: str) -> Any:
    """What the formula gets: floats on the device; integers stay, because masks and indices are little work."""
    return array if array.dtype.kind in "iub" else Tensor(_put(array, device))


def _put(array: np.ndarray, device: str) -> torch.Tensor:
    """The array on the device, floats in float64: made wide there, because the host takes seconds for a gigabyte."""
    tensor = backend.put(array, Device(device, ""))
    return tensor if array.dtype.kind in "iub" else tensor.double()


def _take(array: np.ndarray, rows: np.ndarray, axis: int) -> np.ndarray:
    """The rows along an axis."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:  # they follow one another, as nearly always
        at = [slice(None)] * array.ndim
        at[axis] = slice(int(rows[0]), int(rows[-1]) + 1)
        return np.array(array[tuple(at)])  # a copy: Torch warns of memory that may not be written to
    return np.take(array, rows, axis=axis)


def _tensor(value: Any, device: str) -> Tensor:
    tensor = value.tensor if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value), device=device)
    return Tensor(tensor.double().contiguous())
