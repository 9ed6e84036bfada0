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

A kernel.py says in `hard(case)` which kinds of floats its formula defines, and for which inputs and weights; without it, all for all
inputs that are floats, and for no weights. The edges are those of a kernel.py with `edges`, which draws its inputs anew: what floats
may be can depend on integers, as NaN stands in padding. They are kinds of their own because a scalar has one value in each set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusebench.contract import Case, Mathematics
from fusebench.dtypes import FORMATS

# Of which a gradient has 0 × inf and inf - inf somewhere: what is left depends on the order in which a program has its factors.
OPEN_IN_GRADIENTS = ("nan", "inf", "extreme")
EDGES = ("lower_edge", "upper_edge", "between")
# New ones last: a place is part of the seed.
KINDS = ("plain", "large_mean", "equal", "subnormal", "nan", "inf", "extreme", "large", *EDGES)
# A power of two, so that no value is rounded anew; float16 still holds a product of two such values.
LARGE = 32


def kinds(mathematics: Mathematics, case: Case) -> tuple[str, ...]:
    """The kinds that the kernel defines for the case, `plain` first."""
    floats = {*KINDS} - {*EDGES} if mathematics.hard is None else {*mathematics.hard(case), "plain"}
    defined = floats if mathematics.edges is None else floats | {*EDGES}
    left_open = () if case.mode == "forward" else OPEN_IN_GRADIENTS
    return tuple(k for k in KINDS if k in defined and k not in left_open)


def change(
    mathematics: Mathematics, case: Case, kind: str, arrays: Mapping[str, np.ndarray], seed: Sequence[int]
) -> dict[str, Any]:  # fmt: skip
    """The inputs of the case made hard in the way of `kind`; scalars and integers stay as they are, and so does all at EDGES."""
    if kind in ("plain", *EDGES):
        return dict(arrays)
    names = list(arrays if mathematics.hard is None else mathematics.hard(case)[kind])
    rng = np.random.default_rng([*seed, KINDS.index(kind)])
    return {
        name: _changed(np.asarray(a), kind, case.dtype, rng, names.count(name)) if name in names else a
        for name, a in arrays.items()
    }


def _changed(array: np.ndarray, kind: str, dtype: str, rng: np.random.Generator, times: int) -> np.ndarray:
    """`array`, computed in float32 with its last axis as rows; it is rounded to the storage dtype later."""
    if array.dtype.kind != "f" or array.ndim == 0:
        return array
    _, smallest, largest = FORMATS[dtype]
    rows = array.astype(np.float32).reshape(-1, array.shape[-1])  # a copy
    number, column = np.arange(len(rows)), rng.integers(0, rows.shape[1], len(rows))
    if kind == "large_mean":
        finite = rows[np.isfinite(rows)]  # -inf and NaN, as masks leave them, have no deviation, and stay as they are
        rows += 100 * finite.std() if finite.size else 0
    elif kind == "equal":
        rows[:] = rows[:, :1]
    elif kind == "subnormal":
        rows = (rows.astype(np.float64) * 2.0 ** (smallest - 4)).astype(np.float32)
    elif kind == "nan":
        rows[number[::3], column[::3]] = np.nan
    elif kind == "inf":
        rows[number[::3], column[::3]] = np.inf
        rows[number[1::3], column[1::3]] = -np.inf
    elif kind == "large":
        rows *= LARGE**times
    else:  # extreme
        rows = (np.copysign(rng.uniform(0.5, 1, rows.shape), rows) * largest).astype(np.float32)
    return rows.reshape(array.shape).astype(array.dtype, copy=False)
