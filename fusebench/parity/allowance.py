"""How far rounding alone may move an output, from noisy evaluations of its formula. docs/numerics.md derives every figure.

Each element may be off by half a spacing of the storage dtype, plus what the declared points make of these very inputs, plus
`SIGMAS` standard deviations of the noise. All elements together may have the root mean square and the mean of error ÷
standard deviation that the noisy evaluations have: that finds the small systematic error which no single element shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fusebench.parity.rounding import spacing, stored

DRAWS = 16  # noisy evaluations; each costs about as much as the reference
SIGMAS = 7.0  # a normal error is beyond it once in 4e11
# A variance from 16 draws scatters by a third: the mean of the elements' nearest in value counts for 8 draws more.
NEIGHBOURS, NEIGHBOURS_WEIGHT = 16, 8
AGGREGATE_SIGMAS = 8.0  # Student's t with 15 degrees of freedom is beyond it once in a million
FEW = 4.0  # elements that may be one deviation worse than in any draw: a rounding that happened to go the other way


@dataclass(frozen=True)
class Allowance:
    """What a correct program may do to one output. Arrays have its shape.

    `reach` is how far the value before its last rounding may be off, `limit` how far the stored one may, `deviation` the
    standard deviation of its error. `nonfinite` maps inf, -inf and NaN to where overflow on the way may leave it.
    """

    reach: np.ndarray
    limit: np.ndarray
    deviation: np.ndarray
    rms_limit: float
    mean_limits: tuple[float, float]
    nonfinite: Mapping[float, np.ndarray] = field(default_factory=dict)


def derive(exact: np.ndarray, draws: Sequence[np.ndarray], staged: np.ndarray, dtype: str) -> Allowance:
    """The allowance of an output from its exact value, its noisy draws and its value with the declared points rounded."""
    with np.errstate(all="ignore"):
        moved = np.stack([_finite(drawn - exact) for drawn in draws])
        own = (moved**2).mean(axis=0)
        variance = (DRAWS * own + NEIGHBOURS_WEIGHT * _of_neighbours(own, exact)) / (DRAWS + NEIGHBOURS_WEIGHT)
        reach = SIGMAS * np.sqrt(variance) + np.abs(_finite(staged - exact))
        deviation = np.sqrt(variance + spacing(exact, dtype) ** 2 / 12)
        ends = [stored(value, dtype) for value in (*draws, staged, exact)]
    figures = np.array([together(errors(end, exact), deviation) for end in ends])
    (drawn_rms, drawn_mean), (staged_rms, staged_mean) = figures[:DRAWS].T, figures[DRAWS]
    few = FEW / max(exact.size, 1)
    rms_limit = max(drawn_rms.mean(), staged_rms) + AGGREGATE_SIGMAS * drawn_rms.std(ddof=1) + few
    middles, width = (drawn_mean.mean(), staged_mean), AGGREGATE_SIGMAS * drawn_mean.std(ddof=1) + few
    nonfinite = {
        value: where
        for value in (np.inf, -np.inf, np.nan)
        if (where := np.logical_or.reduce([_equal(end, value) for end in ends])).any()
    }
    limit = limit_of(exact, reach, dtype)
    mean_limits = float(min(middles) - width), float(max(middles) + width)
    return Allowance(reach, limit, deviation, float(rms_limit), mean_limits, nonfinite)


def limit_of(exact: np.ndarray, reach: np.ndarray, dtype: str) -> np.ndarray:
    """`reach` and half a spacing of the storage dtype, at the largest value that is within reach."""
    return reach + spacing(np.abs(exact) + reach, dtype) / 2


def errors(got: np.ndarray, expected: np.ndarray, nonfinite: Mapping[float, np.ndarray] | None = None) -> np.ndarray:
    """got - expected: 0 where both are the same infinity or NaN or may be that by overflow, infinite where only one is."""
    with np.errstate(all="ignore"):
        same = _equal(got, expected)
        for value, where in (nonfinite or {}).items():
            same |= where & _equal(got, value)
        difference = got - expected
    return np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))


def together(error: np.ndarray, deviation: np.ndarray) -> tuple[float, float]:
    """Root mean square and mean of error ÷ deviation, over the elements whose error is finite."""
    if not error.size:
        return 0.0, 0.0
    normal = np.where((error == 0) | ~np.isfinite(error), 0.0, error / np.where(deviation > 0, deviation, 1.0))
    return float(np.sqrt(np.mean(normal**2))), float(np.mean(normal))


def _of_neighbours(variance: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The mean variance of the elements nearest in value: in the same row, or in the whole output where rows are short.

    A zero may be the end of a relu that noise did not happen to cross: it is owed the variance of the least values beside it.
    """
    if not exact.size:
        return variance
    width = exact.shape[-1] if exact.ndim and exact.shape[-1] >= 4 * NEIGHBOURS else exact.size
    values, variances = exact.reshape(-1, width), variance.reshape(-1, width)
    order = np.argsort(values, axis=1)
    by_value = np.take_along_axis(variances, order, axis=1)
    reach = min(NEIGHBOURS, width)
    sums = np.cumsum(np.pad(by_value, ((0, 0), (1, 0))), axis=1)
    first = np.clip(np.arange(width) - reach // 2, 0, width - reach)
    means = np.empty_like(variances)
    np.put_along_axis(means, order, (sums[:, first + reach] - sums[:, first]) / reach, axis=1)
    zero = values == 0
    if zero.any() and not zero.all():
        magnitude = np.where(zero | ~np.isfinite(values), np.inf, np.abs(values))
        least = np.argpartition(magnitude, reach - 1, axis=1)[:, :reach]
        beside = np.take_along_axis(np.where(zero, 0.0, variances), least, axis=1).mean(axis=1, keepdims=True)
        means = np.where(zero, np.maximum(means, beside), means)
    return means.reshape(exact.shape)


def _finite(value: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(value), value, 0.0)


def _equal(a: np.ndarray, b: np.ndarray | float) -> np.ndarray:
    """Equal, where NaN equals NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))
