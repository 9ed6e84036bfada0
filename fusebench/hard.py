"""Hard inputs: what breaks a kernel that is right on plain ones. Each kind changes some of a kernel's inputs.

    large_mean   every row moved by 100 standard deviations of what is finite: differences cancel
    equal        every row has one value throughout: its variance is 0
    subnormal    all values below the smallest normal number of the dtype
    nan          every third row has one NaN
    inf          every third row has one inf, every third one -inf
    extreme      all values within a factor of 2 of the largest finite number of the dtype
    large        all values times 32, or 32² of what is named twice: exponentials overflow where no maximum is taken off, a mask of
                 -1e4 is no lower than scores, activations are at their ends, probabilities 0 or 1
    lower_edge   integers at the least that they may be, and below it where the formula says what is then: no padding, the id -1
    upper_edge   integers at the most, and above it: nothing but padding, the id 2³²
    between      integers anywhere between the edges: any padding, ids from all of a table, one of them over and over
    small        all values times 2⁻⁸: a variance is no larger than its eps, 1 + x loses x
    zeros        every third row 0, and half of the values in the others, of either sign; what is not finite stays; scalars 0
    wide         all values times 2²⁰, which float16 does not hold: a cast to it on the way shows. Not in float16
    scalar       scalars times -6: they are negative, and none is a share. Where `hard` names some
    upstream     every third row of the upstream gradients times 2¹⁷, every third one times 2⁻²⁴ (in float16 32 and 1/32), every
                 third one 0. In the backward modes, of all kernels
    negative     all values in steps from -2²⁰ down, in float16 from -2⁷; what is named twice has one positive value in each row and
                 zeros instead, so that a product of the two is negative throughout: a maximum that begins at 0, or a mask of -1e6,
                 is above all scores. What is named three times has a value 2⁷ times smaller: scores from about -2¹⁷ down are below a
                 mask of -1e4, and float32 has their differences to a part of 1, which gradients take from the logarithm of their sum
    equal_large  every row has one value throughout, times 64: mean(x²) - mean(x)² is nothing but rounding, below 0 too
    nan_column   one column NaN in all rows, with integers at the least that they may be: a NaN that is made 0 shows
    repeated     integers the same in all samples: more rows of a gradient go to one place than a warp has threads

A kernel.py says in `hard(case)` which kinds of floats its formula defines, and for which inputs and weights; without it, all for all
inputs that are floats, and for no weights; the last three and `scalar` are for kernels that name them. The edges are those of a kernel.py with `edges`, which draws its inputs anew: what floats
may be can depend on integers, as NaN stands in padding. They are kinds of their own because a scalar has one value in each set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebench.contract import Case, Mathematics
from fusebench.dtypes import FORMATS

# Of which a gradient has 0 × inf and inf - inf somewhere: what is left depends on the order in which a program has its factors.
OPEN_IN_GRADIENTS = ("nan", "inf", "extreme", "nan_column")
EDGES = ("lower_edge", "upper_edge", "between")
UPSTREAM = "upstream"
NAMED = ("scalar", "equal_large", "nan_column", "repeated")  # for kernels whose `hard` names them
ALIKE = ("equal", "equal_large", "negative")  # of which all elements of a row may err alike
DRAWN = (*EDGES, "nan_column", "repeated")  # for which `edges` draws the inputs
# New ones last: a place is part of the seed.
KINDS = (
    "plain", "large_mean", "equal", "subnormal", "nan", "inf", "extreme", "large", *EDGES, "small", "zeros", "wide", "scalar", UPSTREAM,
    "negative", "equal_large", "nan_column", "repeated",
)  # fmt: skip
# Powers of two, so that no value is rounded anew; float16 still holds a product of two LARGE values.
LARGE, SMALL, WIDE = 32, 2.0**-8, 2.0**20
# float32 has no exponential of -2⁷ above 0; scores of q k in float16 may be stored.
FAR, FAR_IN_FLOAT16 = 2.0**20, 2.0**7
# Divided by √D scores are from 2²⁴ / NEARER / √D up in size: 11 585 where D is 128. Most are below 2²⁰, where half a spacing of float32 is 2⁻⁵.
NEARER = 2.0**7


@dataclass(frozen=True)
class Rows:
    """`values` (R, C) float32 are changed in place; `column` (R,) is one of each row, `times` how often the kernel names the array."""

    values: np.ndarray
    column: np.ndarray
    times: int
    dtype: str
    rng: np.random.Generator


def kinds(mathematics: Mathematics, case: Case) -> tuple[str, ...]:
    """The kinds that the kernel defines for the case, `plain` first."""
    floats = {*KINDS} - {*EDGES, *NAMED, UPSTREAM} if mathematics.hard is None else {*mathematics.hard(case), "plain"}
    defined = floats if mathematics.edges is None else floats | {*EDGES}
    if case.mode != "forward":
        defined = defined - {*OPEN_IN_GRADIENTS} | {UPSTREAM}
    if case.dtype == "float16":
        defined = defined - {"wide"}
    return tuple(k for k in KINDS if k in defined)


def change(
    mathematics: Mathematics, case: Case, kind: str, arrays: Mapping[str, np.ndarray], seed: Sequence[int]
) -> dict[str, Any]:  # fmt: skip
    """The inputs of the case made hard in the way of `kind`. Integers stay as they are, and all at EDGES and with hard UPSTREAM gradients."""
    if kind in ("plain", UPSTREAM, *EDGES):
        return dict(arrays)
    names = list(arrays if mathematics.hard is None else mathematics.hard(case)[kind])
    return _changed(case, kind, arrays, {name: names.count(name) for name in names}, seed)


def change_upstream(case: Case, arrays: Mapping[str, np.ndarray], seed: Sequence[int]) -> dict[str, Any]:
    """The upstream gradients of the case made hard."""
    return _changed(case, UPSTREAM, arrays, dict.fromkeys(arrays, 1), seed)


def _changed(
    case: Case, kind: str, arrays: Mapping[str, np.ndarray], times: Mapping[str, int], seed: Sequence[int]
) -> dict[str, Any]:  # fmt: skip
    """The arrays, those that `times` names changed in float32 with their last axis as rows; they are rounded to the storage dtype later."""
    rng, made = np.random.default_rng([*seed, KINDS.index(kind)]), dict[str, Any](arrays)
    for name, array in ((name, np.asarray(array)) for name, array in arrays.items() if name in times):
        change = (OF_ARRAYS if array.ndim else OF_SCALARS).get(kind)
        if change is None or array.dtype.kind != "f":
            continue
        values = array.astype(np.float32).reshape(-1, array.shape[-1] if array.ndim else 1)  # a copy
        column = rng.integers(0, values.shape[1], len(values))
        change(Rows(values, column, times[name], case.dtype, rng))
        made[name] = values.reshape(array.shape).astype(array.dtype, copy=False)
    return made


def _large_mean(rows: Rows) -> None:
    # -inf and NaN, as masks leave them, have no deviation, and stay as they are
    finite = rows.values[np.isfinite(rows.values)]
    rows.values[:] += 100 * finite.std() if finite.size else 0


def _equal(rows: Rows) -> None:
    rows.values[:] = rows.values[:, :1]


def _subnormal(rows: Rows) -> None:
    _, smallest, _ = FORMATS[rows.dtype]
    rows.values[:] = rows.values.astype(np.float64) * 2.0 ** (smallest - 4)


def _nan(rows: Rows) -> None:
    _every_third(rows, 0, np.nan)


def _inf(rows: Rows) -> None:
    _every_third(rows, 0, np.inf)
    _every_third(rows, 1, -np.inf)


def _every_third(rows: Rows, first: int, value: float) -> None:
    """Writes the value to the column of every third row."""
    rows.values[np.arange(first, len(rows.values), 3), rows.column[first::3]] = value


def _extreme(rows: Rows) -> None:
    _, _, largest = FORMATS[rows.dtype]
    rows.values[:] = np.copysign(rows.rng.uniform(0.5, 1, rows.values.shape), rows.values) * largest


def _times(factor: float) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows.values[:] *= np.float32(factor**rows.times)

    return change


def _zeros(rows: Rows) -> None:
    zero = rows.rng.random(rows.values.shape) < 0.5
    zero[::3] = True
    rows.values[zero & np.isfinite(rows.values)] *= 0  # which keeps the sign


def _upstream(rows: Rows) -> None:
    largest, least = (32.0, 1 / 32) if rows.dtype == "float16" else (2.0**17, 2.0**-24)
    for first, factor in enumerate((largest, least, 0)):
        rows.values[first::3] *= np.float32(factor)


def _negative(rows: Rows) -> None:
    size, finite = np.abs(rows.values), np.isfinite(rows.values)
    # in steps of some spacings of 16 bits: what is next to the maximum of a row is equal to it, or stays below it however it is rounded
    far = FAR_IN_FLOAT16 if rows.dtype == "float16" else FAR
    made = -far * (1 + np.rint(4 * size) / 16)
    if rows.times >= 2:
        chosen = np.arange(size.shape[1]) == rows.column[:, None]
        value = 16 if rows.times == 2 else 16 / NEARER
        made = np.where(chosen, value * (1 + size), 0)  # products with one factor, whose sum no order rounds
    rows.values[finite] = made[finite]


def _equal_large(rows: Rows) -> None:
    rows.values[:] = rows.values[:, :1] * 64


def _nan_column(rows: Rows) -> None:
    rows.values[:, rows.column[0]] = np.nan


OF_ARRAYS: Mapping[str, Callable[[Rows], None]] = {
    "large_mean": _large_mean,
    "equal": _equal,
    "subnormal": _subnormal,
    "nan": _nan,
    "inf": _inf,
    "extreme": _extreme,
    "large": _times(LARGE),
    "small": _times(SMALL),
    "zeros": _zeros,
    "wide": _times(WIDE),
    UPSTREAM: _upstream,
    "negative": _negative,
    "equal_large": _equal_large,
    "nan_column": _nan_column,
}
OF_SCALARS: Mapping[str, Callable[[Rows], None]] = {"zeros": _times(0), "scalar": _times(-6)}
