"""Which of two sides is faster, from pairs of processes: pure functions of arrays, no clock and no process.

A pair of processes gives one number, the logarithm of B's time over A's. What differs between processes (where memory
lies, which clocks the device chose) differs between pairs, so pairs are the sample and calls are not. The interval is the
symmetric bootstrap-t of Hall (The Bootstrap and Edgeworth Expansion, 1992, section 3.6): on few pairs the percentile and
BCa intervals are too narrow, which `tests/test_compare.py` shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

SAME = 0.02  # a difference of at most this is none
PAIRS = 10  # of processes, without the key: the fewest that find 5 % also where pairs differ by 2 % (docs/timing.md)
FEWEST = 5  # pairs that have an interval: with 4, one resample in 64 is of one value alone
# Student's intervals wide at most: less would cost coverage where pairs fall into two groups, more gains none
WIDEST = 2
RESAMPLES = 4000  # of the bootstrap; its seed is fixed, so that the same pairs always get the same verdict


@dataclass(frozen=True)
class Result:
    """B's time over A's: `ratio` is the geometric mean over pairs, `low` and `high` its interval (0 and infinity where there
    are too few pairs for one), `verdict` what B is: "faster", "slower", "same", "too noisy" or "too few pairs"."""

    ratio: float
    low: float
    high: float
    verdict: str
    pairs: int

    def surely_slower(self, threshold: float) -> bool:
        """Whether B is slower by more than `threshold` (0.03 is 3 %) at the lower end of the interval."""
        return self.low > 1 + threshold

    def perhaps_slower(self, threshold: float) -> bool:
        """Whether the interval leaves open that B is slower by more than `threshold`."""
        return self.high > 1 + threshold and not self.surely_slower(threshold)

    def pairs_needed(self) -> int:
        """About how many pairs would make the interval narrow enough for a verdict; it shrinks with their square root."""
        if not 0 < self.low < self.high < math.inf:
            return FEWEST
        half = math.log(self.high / self.low) / 2
        return max(self.pairs + 2, math.ceil(self.pairs * (half / (0.75 * SAME)) ** 2))


def pair_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """B's time over A's in one pair, from the medians of their turns, `a[i]` and `b[i]` of one round: the median over the
    rounds, so that a drift cancels in each round and a disturbed round does not count."""
    return float(np.exp(np.median(np.log(np.asarray(b) / np.asarray(a)))))


def compare(ratios: Sequence[float], confidence: float = 0.99) -> Result:
    """The verdict from the pairs' ratios.

    `same` if the interval lies within 2 % of 1; `faster` or `slower` if it leaves 1 out and the ratio is more than 2 % from
    1; `too few pairs` for an interval, or else `too noisy` to tell. Raises ValueError for no ratios, or one that is not positive.
    """
    values = np.asarray(ratios, float)
    if not values.size or not (values > 0).all() or not np.isfinite(values).all():
        raise ValueError(f"expected at least one ratio, all positive: {list(ratios)}")
    centre, half = interval(np.log(values), confidence)
    if half == math.inf:
        return Result(math.exp(centre), 0.0, math.inf, "too few pairs", values.size)
    ratio, low, high = math.exp(centre), math.exp(centre - half), math.exp(min(centre + half, 700.0))
    return Result(ratio, low, high, verdict(ratio, low, high), values.size)


def verdict(ratio: float, low: float, high: float) -> str:
    if low >= 1 / (1 + SAME) and high <= 1 + SAME:
        return "same"
    if low > 1 and ratio > 1 + SAME:
        return "slower"
    if high < 1 and ratio < 1 / (1 + SAME):
        return "faster"
    return "too noisy"


def interval(values: np.ndarray, confidence: float) -> tuple[float, float]:
    """The mean and the half width of its symmetric bootstrap-t interval; infinite below `FEWEST` values.

    Each resample of the values gives |its mean − their mean| in its own standard errors; the quantile of these at
    `confidence`, times the standard error of the values, is the half width. Resamples of equal values alone, which a clock
    with steps makes likely, have no spread and would make it infinite: it is at most `WIDEST` times Student's.
    """
    count, mean = len(values), float(values.mean())
    if count < FEWEST:
        return mean, math.inf
    drawn = values[np.random.default_rng(0).integers(0, count, (RESAMPLES, count))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(count)
    off = np.abs(drawn.mean(axis=1) - mean)
    distances = np.divide(off, errors, out=np.where(off > 0, np.inf, 0.0), where=errors > 0)
    widest = WIDEST * special.stdtrit(count - 1, (1 + confidence) / 2)
    quantile = min(np.quantile(distances, confidence, method="higher"), widest)
    return mean, float(quantile * values.std(ddof=1) / math.sqrt(count))


@dataclass(frozen=True)
class SelfCheck:
    """How often comparisons of a side with itself gave a verdict that was false, and found a planted slow-down; the upper limit of
    the rate of false verdicts and the lower one of the share found, at 95 % each (Clopper and Pearson 1934, one-sided)."""

    comparisons: int
    false: int
    found: int
    false_at_most: float
    found_at_least: float

    @classmethod
    def of(cls, comparisons: int, false: int, found: int) -> SelfCheck:
        """With the limits that follow from the counts."""
        most = special.betaincinv(false + 1, comparisons - false, 0.95) if false < comparisons else 1.0
        least = special.betaincinv(found, comparisons - found + 1, 0.05) if found else 0.0
        return cls(comparisons, false, found, float(most), float(least))


def self_check(
    ratios: Sequence[float],
    pairs: int,
    comparisons: int,
    confidence: float = 0.99,
    slowdown: float = 0.05,
    seed: int = 0,
) -> SelfCheck:
    """Draws comparisons of `pairs` pairs each from those recorded of a side against itself, without replacement and with
    the sides of each pair swapped at random; then again with B's times longer by `slowdown`."""
    rng, recorded = np.random.default_rng(seed), np.log(np.asarray(ratios, float))
    false = found = 0
    for _ in range(comparisons):
        drawn = rng.choice(recorded, pairs, replace=False) * rng.choice((-1, 1), pairs)
        false += compare(np.exp(drawn), confidence).verdict in ("faster", "slower")
        found += compare(np.exp(drawn) * (1 + slowdown), confidence).verdict == "slower"
    return SelfCheck.of(comparisons, false, found)
