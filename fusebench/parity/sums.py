"""What the order of a sum makes of its error: its partial sums, terms that repeat, and sums of segments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusebench.parity.elements import add_product, moved

PARTIAL_SUMS = 16  # of a product that are looked at
# XLA adds a row on a GPU in threads of so many terms or more, at most so many threads, and these in pairs.
LANE_TERMS, LANES = 16, 1024
# Of a sum so many terms are looked at, each beside others at so many distances; the noise before keeps equal values that near.
SAMPLED_TERMS, SAMPLED_DISTANCES, SAME = 1024, 8, 2.0**-21


def partial_sums(a: np.ndarray, b: np.ndarray, least: int) -> np.ndarray:
    """The mean square of the partial sums of a @ b in the order of K, from at most PARTIAL_SUMS of them, `least` terms apart."""
    step, count = _steps(a.shape[-1], least)
    total = a[..., :step] @ b[..., :step, :]
    squares = total**2
    for k in range(step, a.shape[-1], step):
        total = add_product(total, a[..., k : k + step], b[..., k : k + step, :])
        squares = moved(squares, total, total)
    return squares / count


def mean_of_partial_sums(a: np.ndarray, b: np.ndarray, least: int) -> np.ndarray:
    """The mean of the same partial sums: term k is in all but those that end before it."""
    step, count = _steps(a.shape[-1], least)
    return (a * (1 - np.arange(a.shape[-1]) // step / count)) @ b


def variance_in_lanes(total: Any, squares: Any, K: int) -> Any:
    """What additions of relative error 1, uniform, make of a sum of K terms, with those `squares`, in lanes that are then added in pairs: each
    term is in half of the partial sums of its lane, and in one of each level of pairs; what the terms have in common is in the last ones."""
    lanes = min(LANES, math.ceil(K / LANE_TERMS))
    return (squares * (K / lanes / 2 + math.log2(lanes)) + 2 * total**2) / 3


def _steps(K: int, least: int) -> tuple[int, int]:
    """How many terms of K partial sums are apart, and how many there are."""
    step = max(least, math.ceil(K / PARTIAL_SUMS))
    return step, math.ceil(K / step)


def repeated(terms: np.ndarray, axis: int, keepdims: bool) -> np.ndarray:
    """How many others of the terms of a sum have the value of one of them, on average, from pairs of a sample; zeros err in no sum."""
    K = terms.shape[axis]
    sample = terms[_along(terms, axis, slice(0, K, max(1, -(-K // SAMPLED_TERMS))))]
    count, met = sample.shape[axis], 0.0
    sample = sample.astype(np.float32)  # tells them apart, and is read in half of the time
    near, around = SAME * abs(sample) - (sample == 0).astype(np.float32), np.concatenate([sample, sample], axis=axis)
    distances = np.unique(np.linspace(1, count - 1, SAMPLED_DISTANCES).astype(int)) if count > 1 else ()
    for distance in distances:
        other = around[_along(terms, axis, slice(distance, distance + count))]
        met = met + (abs(sample - other) <= near).sum(axis=axis, keepdims=keepdims)
    return met * ((K - 1) / max(count * len(distances), 1))


def _along(values: np.ndarray, axis: int, part: slice) -> tuple[slice, ...]:
    """The index of that part of the values along one axis."""
    whole = [slice(None)] * np.ndim(values)
    whole[axis] = part
    return tuple(whole)


def of_segments(value: Any, starts: np.ndarray) -> Any:
    """The sums of rows starts[n] … starts[n + 1] - 1 for each n, 0 of none. Each is made of its own rows alone: differences of a running
    sum lose what is small beside the rows before."""
    if (segmented := getattr(value, "of_segments", None)) is not None:
        return segmented(starts)
    sums = np.zeros((len(starts) - 1, *value.shape[1:]), value.dtype)
    some = starts[1:] > starts[:-1]
    if some.any():
        sums[some] = np.add.reduceat(value[: starts[-1]], starts[:-1][some], axis=0)
    return sums
