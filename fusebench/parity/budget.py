"""The error budget: how far rounding alone may move an output, from noisy evaluations of its formula. docs/numerics.md
derives every figure.

Each element may be off by half a spacing of the storage dtype, plus what the declared points make of these very inputs, plus
as many standard deviations of the noise as correct programs reach once in `ALARMS` outputs. All elements together may have the
root mean square and the mean of error ÷ standard deviation that a further noisy evaluation would have: that finds the small
systematic error which no single element shows.

`derive` is NumPy alone, what it calls works on tensor.py's arrays too: there fewer draws are made of all rows (reference.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from scipy import special  # scipy.stats takes a second to import, which every command would wait

from fusebench.dtypes import FORMATS
from fusebench.parity.elements import finite, spacing, stored

DRAWS = 16  # noisy evaluations; each costs about as much as the reference
SECOND_LOOK_DRAWS = 64  # of what seems wrong by a chance of few draws
ALARMS = 1e-5  # how often each test may reject an output whose error is the noise of the model
ALONE = 1.5  # times its noisiest neighbours, itself among them: an element that is noisy among quiet ones (4 at most)
NEIGHBOURS = 16  # elements next to one another in value, whose noise an element's own is held against
QUIET = 1e-6  # times its neighbours' variance: an element that chance alone cannot have made so
LEAST_WORTH = 2.0  # draws that its neighbours are worth in the test of all together, however unlike an element they are
FEW = 4.0  # elements that may be one deviation worse than in any draw: a rounding that happened to go the other way


@dataclass(frozen=True)
class Budget:
    """What a correct program may do to one output. Arrays have its shape.

    `reach` is how far the value before its last rounding may be off, `limit` how far the stored one may, `deviation` the
    standard deviation of its error. `excess`: by what factor the variance of some element is larger than the noisiest of its
    neighbours' by more than chance. `alike`: how many draws of its own its neighbours' are worth. `widths`: how far beyond the
    draws' the root mean square and the mean may be. `nonfinite` maps inf, -inf and NaN to where overflow on the way may leave it.
    """

    reach: np.ndarray
    limit: np.ndarray
    deviation: np.ndarray
    rms_limit: float
    mean_limits: tuple[float, float]
    excess: float
    alike: float
    widths: tuple[float, float]
    nonfinite: Mapping[float, np.ndarray] = field(default_factory=dict)


def derive(exact: np.ndarray, draws: Sequence[np.ndarray], staged: np.ndarray, dtype: str, elements: int = 0) -> Budget:
    """The budget of an output from its exact value, its noisy draws and its value with the declared points rounded; of
    `elements` elements in all, if these are some of its rows."""
    apart = still(exact, lambda: np.logical_and.reduce([end == exact for end in (*draws, staged)]))
    if apart is not None:
        moving = derive(exact[~apart], [d[~apart] for d in draws], staged[~apart], dtype, max(elements, exact.size))
        return _beside_still(moving, apart, exact, dtype)
    neighbours = Neighbours(exact)
    with np.errstate(all="ignore"):
        squares = [finite(drawn - exact) ** 2 for drawn in draws]
        own = np.mean(squares, axis=0)
        mean, noisiest, size = neighbours.mean(own), neighbours.noisiest(own), max(elements, exact.size)
        worth = prior_draws(own, mean, len(draws))
        alike = max(worth, LEAST_WORTH)
        variance = moderated(own, neighbours, len(draws), alike)
        freedom = len(draws) + min(alike, len(draws) * (neighbours.count - 1))
        # Neighbours that are quite unlike an element say nothing of how far it may be off, unless it did not move at all. A zero may be
        # one that noise did not happen to open (Neighbours): what it moved by is where the smallest numbers round.
        unlike = (own > 0) & (exact != 0) & ((own < QUIET * mean) | (worth < 1))
        alone, among = quantile(len(draws), size) * np.sqrt(own), quantile(freedom, size) * np.sqrt(variance)
        beyond = excess(own, noisiest, len(draws))
        # Where neighbours are not alike an element's own draws are few, but the noisiest of many bound it as well.
        bound = np.maximum(neighbours.bound(own, noisiest), variance / 2)
        reach = np.minimum(
            np.where(unlike, alone, among),
            quantile(len(draws) * neighbours.count, size) * np.sqrt(beyond * bound),
        )
        reach += np.abs(finite(staged - exact))
        if dtype not in FORMATS:
            reach = np.zeros_like(reach)  # an integer is right or wrong
        ends = [stored(value, dtype) for value in (*draws, staged, exact)]
        nonfinite = {
            value: where
            for value in (np.inf, -np.inf, np.nan)
            if (where := np.logical_or.reduce([equal(end, value) for end in ends])).any()
        }
        deviation, figures = all_together(exact, ends[:-1], squares, neighbours, alike, dtype, nonfinite)
    few, wide, drawn = FEW / max(exact.size, 1), prediction(len(draws)), figures[:-1]
    widths = (
        wide * float(np.std([f.rms for f in drawn], ddof=1)) + few,
        wide * float(np.std([f.mean for f in drawn], ddof=1)) + few,
    )
    return Budget(
        reach, limit_of(exact, reach, dtype), deviation, *limits(figures, widths), beyond, alike, widths, nonfinite
    )  # fmt: skip


def still(exact: Any, unmoved: Callable[[], Any]) -> Any:
    """Where nothing rounds, as in table rows that a step only copies: such elements say nothing of the noise of others of their value. Zeros
    may (`_beside_zeros`), and rows that are wide have their noise to themselves. `unmoved()` are those that no evaluation moved. None where
    that is so of all elements or of none."""
    if exact.ndim and exact.shape[-1] >= 4 * NEIGHBOURS:
        return None
    found = np.isfinite(exact) & (exact != 0) & unmoved()
    return found if found.any() and not found.all() else None


def _beside_still(moving: Budget, still: np.ndarray, exact: np.ndarray, dtype: str) -> Budget:
    """The budget of an output of which only some elements have that of `moving`; the others are right or wrong."""

    def among(values: Any, others: np.ndarray) -> np.ndarray:
        found = others.copy()
        found[~still] = values
        return found

    beside = spacing(exact, dtype) / math.sqrt(12)
    rounded = together(
        errors(stored(exact, dtype), exact)[still], beside[still]
    )  # nothing but the output's own rounding
    share = 1 - float(still.mean())
    low, high = (limit * share + float(rounded.total) / exact.size for limit in moving.mean_limits)
    return replace(
        moving,
        reach=among(moving.reach, np.zeros(exact.shape)),
        limit=among(moving.limit, spacing(exact, dtype) / 2),
        deviation=among(moving.deviation, beside),
        rms_limit=math.sqrt(moving.rms_limit**2 * share + float(rounded.squares) / exact.size),
        mean_limits=(low, high),
        nonfinite={value: among(where, np.zeros(exact.shape, bool)) for value, where in moving.nonfinite.items()},
    )


def all_together(
    exact: Any, ends: Sequence[Any], squares: Sequence[Any], neighbours: Neighbours, alike: float, dtype: str,
    nonfinite: Mapping[float, Any],
) -> tuple[Any, list[Sums]]:  # fmt: skip
    """The standard deviation of each element's error, and error ÷ it together: of each draw and of the staged evaluation. `ends`
    are these as they are stored, `squares` those of the draws' errors before, `nonfinite` where overflow on the way may leave what.

    A draw is held against the others alone: its own share would hide how far it is off. An element that may overflow has no
    finite deviation: a program that it does not overflow in may err there by what no draw shows.
    """
    draws, stepped = len(squares), spacing(exact, dtype) ** 2 / 12
    for where in nonfinite.values():
        stepped = np.where(where & np.isfinite(exact), np.inf, stepped)
    total = sum(squares[1:], squares[0])
    deviation = np.sqrt(moderated(total / draws, neighbours, draws, alike) + stepped)
    figures = []
    for end, square in zip(ends, squares, strict=False):
        others = np.maximum(total - square, 0.0) / (draws - 1)
        left = moderated(others, neighbours, draws - 1, alike)
        figures.append(together(errors(end, exact), np.sqrt(left + stepped)))
    return deviation, [*figures, together(errors(ends[-1], exact), deviation)]


def limits(figures: Sequence[Sums], widths: tuple[float, float]) -> tuple[float, tuple[float, float]]:
    """Up to what the root mean square may be, and between what the mean, where the draws and, last, the staged evaluation have
    those figures."""
    *drawn, staged = figures
    middles = (float(np.mean([f.mean for f in drawn])), staged.mean)
    rms = max(float(np.mean([f.rms for f in drawn])), staged.rms)
    return rms + widths[0], (min(middles) - widths[1], max(middles) + widths[1])


def reach_of_few(
    neighbours: Neighbours, exact: Any, own: Any, draws: int, staged: Any, excess: float, elements: int
) -> Any:
    """How far values before their last rounding may be off, from the mean square `own` of what a few draws moved them by.

    So few say little of one element. Its neighbours in value tell more, but not all of them err as it does (of two arguments of
    GELU with the same value one is on its flat side): the noisiest quarter counts, times the `excess` that rows with
    `DRAWS` showed.
    """
    bound = neighbours.bound(own, neighbours.noisiest(own))
    variance = excess * np.maximum(bound, own * (draws / (draws + NEIGHBOURS)))
    return quantile(draws * neighbours.count, elements) * np.sqrt(variance) + np.abs(finite(staged - exact))


def moderated(own: Any, neighbours: Neighbours, draws: int, weight: float) -> Any:
    """The variance of each element: its own over the draws, drawn towards its neighbours' as far as they are alike (Smyth 2004)."""
    weight = min(weight, draws * (neighbours.count - 1))
    variance = (draws * own + weight * neighbours.mean(own)) / (draws + weight)
    return np.maximum(variance, own * (draws / (draws + NEIGHBOURS)))  # one that is unlike its neighbours keeps its own


def prior_draws(own: np.ndarray, mean: np.ndarray, draws: int) -> float:
    """How many draws of an element's own its neighbours' variance is worth: own ÷ neighbours' has the variance 2 ÷ draws from
    chance alone, and what it has more is theirs. Elements that hardly move beside others that do are safe, and say nothing."""
    ratio = own[mean > 0] / mean[mean > 0]
    ratio = ratio[ratio > QUIET]
    more = float(ratio.var()) - 2 / draws if ratio.size else 2 / NEIGHBOURS
    return float(min(2 / more if more > 1e-3 else np.inf, draws * NEIGHBOURS))


def excess(own: np.ndarray, noisiest: np.ndarray, draws: int) -> float:
    """By what factor some element's variance is beyond its noisiest neighbours' and what chance does once in 1000 outputs."""
    ratio = own[noisiest > 0] / noisiest[noisiest > 0]
    if not ratio.size:
        return 1.0
    return max(1.0, float(ratio.max()) * draws / float(special.chdtri(draws, 1e-3 / ratio.size)))


def quantile(freedom: float, elements: int) -> float:
    """How many deviations one of so many elements is beyond once in 1 / ALARMS outputs, if its variance has that many degrees of
    freedom: Student's t."""
    return _quantile(freedom, ALARMS / max(elements, 1))


@cache
def _quantile(freedom: float, rate: float) -> float:
    return -float(special.stdtrit(freedom, rate / 2))


@cache
def prediction(draws: int) -> float:
    """How many of the draws' standard deviations a further draw's figure is beyond once in 1 / ALARMS outputs."""
    return -float(special.stdtrit(draws - 1, ALARMS / 2) * np.sqrt(1 + 1 / draws))


def limit_of(exact: Any, reach: Any, dtype: str) -> Any:
    """`reach` and half a spacing of the storage dtype, at the largest value that is within reach."""
    return reach + spacing(np.abs(exact) + reach, dtype) / 2


def errors(got: np.ndarray, expected: np.ndarray, nonfinite: Mapping[float, np.ndarray] | None = None) -> np.ndarray:
    """got - expected: 0 where both are the same infinity or NaN or may be that by overflow, infinite where only one is."""
    with np.errstate(all="ignore"):
        same = equal(got, expected)
        for value, where in (nonfinite or {}).items():
            same |= where & equal(got, value)
        difference = got - expected
    return np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))


@dataclass(frozen=True)
class Sums:
    """Of error ÷ standard deviation: of how many elements, its sum, and that of its squares. Those of chunks can be added."""

    count: int
    total: Any
    squares: Any

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def rms(self) -> float:
        return float(np.sqrt(float(self.squares) / max(self.count, 1)))

    @property
    def mean(self) -> float:
        return float(self.total) / max(self.count, 1)


def together(error: Any, deviation: Any) -> Sums:
    """Error ÷ deviation, over the elements whose error is finite."""
    normal = finite(error) / np.where(deviation > 0, deviation, 1.0)
    return Sums(error.size, normal.sum(), (normal**2).sum())


class Neighbours:
    """The elements of an output in groups of `NEIGHBOURS` that are next to one another in value: in the same row, or in the whole
    output where rows are short."""

    def __init__(self, exact: Any):
        self.shape = exact.shape
        wide = exact.ndim and exact.shape[-1] >= 4 * NEIGHBOURS
        self.width = exact.shape[-1] if wide else exact.size
        self.count = min(NEIGHBOURS, max(self.width, 1))
        self.values = exact.reshape(-1, self.width) if self.width else exact
        self.order: Any = np.argsort(self.values, axis=1) if self.width else None

    def mean(self, variance: Any) -> Any:
        """The mean variance of each element's group."""
        return self._of_groups(variance, lambda groups: groups.mean(axis=2))

    def noisiest(self, variance: Any) -> Any:
        """The mean of the largest quarter of each element's group."""
        few = max(1, self.count // 4)
        return self._of_groups(variance, lambda groups: np.sort(groups, axis=2)[:, :, -few:].mean(axis=2))

    def bound(self, variance: Any, noisiest: Any) -> Any:
        """The variance that the neighbours of each element say is enough: that of the `noisiest`, or for an element that is noisy
        alone, as GELU's near 0 are among those of its flat side, that of the noisiest of the whole row: its own draws are too few."""
        if not self.width:
            return noisiest
        highest = noisiest.reshape(-1, self.width).max(axis=1, keepdims=True) + 0.0 * self.values
        return np.where(variance > ALONE * noisiest, highest.reshape(self.shape), noisiest)

    def _of_groups(self, variance: Any, figure: Callable[[Any], Any]) -> Any:
        if not self.width:
            return variance
        variances = self._beside_zeros(variance.reshape(-1, self.width))
        by_value = np.take_along_axis(variances, self.order, axis=1)
        number = -(-self.width // self.count)
        first = np.minimum(np.arange(number) * self.count, self.width - self.count)  # the last group overlaps
        groups = by_value[:, (first[:, None] + np.arange(self.count)).reshape(-1)].reshape(-1, number, self.count)
        figures = figure(groups)[:, np.arange(self.width) // self.count]
        found = np.empty_like(variances)
        np.put_along_axis(found, self.order, figures, axis=1)
        return found.reshape(self.shape)

    @cached_property
    def _zeros(self) -> tuple[Any, Any] | None:
        """Where values are 0, and the places of the least other ones of each row; None where all or none are. They stay the same for
        every draw's variance."""
        zero = self.values == 0
        if not zero.any() or zero.all():
            return None
        magnitude = np.where(zero | ~np.isfinite(self.values), np.inf, np.abs(self.values))
        return zero, np.argpartition(magnitude, self.count - 1, axis=1)[:, : self.count]

    def _beside_zeros(self, variances: Any) -> Any:
        """A zero may be the end of a relu that noise did not happen to cross: it is owed the variance of the least values beside it."""
        if self._zeros is None:
            return variances
        zero, least = self._zeros
        beside = np.take_along_axis(np.where(zero, 0.0, variances), least, axis=1).mean(axis=1, keepdims=True)
        return np.where(zero, np.maximum(variances, beside), variances)


def equal(a: Any, b: Any) -> Any:
    """Equal, where NaN equals NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))
