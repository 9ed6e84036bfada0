"""The figures of a comparison, computed another way: by t statistics, by the binomial distribution, by tables."""

from __future__ import annotations

import math
import statistics
import warnings

import numpy as np
import pytest
from scipy import stats

from fusebench.comparison import statistics as comparison
from fusebench.comparison.statistics import Result, compare, interval, pair_ratio, self_check, verdict

RATIOS = (1.011, 0.98, 1.06, 1.03, 0.995, 1.12, 1.04)
STUDENT = {(0.99, 5): 4.604095, (0.99, 10): 3.249836, (0.95, 5): 2.776445, (0.5, 6): 0.726687}  # tables of t


def bootstrap_t(values, confidence):
    """The half width by t statistics of the same draws: the one that at least `confidence` of 4000 resamples stay within."""
    n = len(values)
    drawn = np.asarray(values)[np.random.default_rng(0).integers(0, n, (4000, n))]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # resamples of one value alone have none
        distances = np.abs(stats.ttest_1samp(drawn, statistics.fmean(values), axis=1).statistic)
    ordered = sorted(np.nan_to_num(distances, nan=math.inf))
    quantile = ordered[math.ceil(confidence * (len(ordered) - 1))]
    widest = 2 * stats.t.isf((1 - confidence) / 2, n - 1)
    return min(quantile, widest) * statistics.stdev(values) / math.sqrt(n)


@pytest.mark.parametrize("confidence", [0.99, 0.9, 0.55])
@pytest.mark.parametrize("count", [5, 7])
def test_the_interval_is_the_symmetric_bootstrap_t(confidence, count):
    values = np.log(RATIOS[:count])
    centre, half = interval(values, confidence)
    assert centre == pytest.approx(statistics.fmean(values)) and half == pytest.approx(
        bootstrap_t(list(values), confidence)
    )


def test_a_result_is_the_geometric_mean_and_the_interval_around_it():
    found = compare(RATIOS)
    centre, half = statistics.geometric_mean(RATIOS), bootstrap_t([math.log(r) for r in RATIOS], 0.99)
    assert found.ratio == pytest.approx(centre) and found.pairs == 7
    assert (found.low, found.high) == (pytest.approx(centre * math.exp(-half)), pytest.approx(centre * math.exp(half)))
    assert compare(RATIOS, 0.8).high < found.high and compare(RATIOS) == compare(RATIOS), (
        "the same pairs, the same verdict"
    )


@pytest.mark.parametrize(("confidence", "count"), STUDENT)
def test_it_is_twice_students_at_most(confidence, count):
    values = np.array([0.0] * (count - 1) + [0.1]) if confidence > 0.9 else np.array([0.0] * 3 + [0.1] * 3)
    _, half = interval(values, confidence)
    widest = 2 * STUDENT[confidence, count] * statistics.stdev(values) / math.sqrt(count)
    assert half == pytest.approx(widest, rel=1e-5) if confidence > 0.9 else half < widest


def test_four_pairs_have_no_interval_and_five_have():
    assert interval(np.log(RATIOS[:4]), 0.99)[1] == math.inf and math.isfinite(interval(np.log(RATIOS[:5]), 0.99)[1])
    assert interval(np.zeros(5), 0.99) == (0.0, 0.0)
    found = compare(RATIOS[:4])
    assert (found.low, found.high, found.pairs) == (0.0, math.inf, 4) and found.ratio == pytest.approx(
        statistics.geometric_mean(RATIOS[:4])
    )


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [1.0, -1.0], [1.0, math.inf], [1.0, math.nan]])
def test_ratios_that_are_none_are_refused(ratios):
    with pytest.raises(ValueError, match="at least one ratio, all positive"):
        compare(ratios)


def test_an_interval_that_no_float_holds_ends_where_floats_do():
    assert math.isfinite(compare([1e-200, 1e200, 1e-300, 1e300, 1.0]).high)


def test_of_a_pair_the_median_round_counts_and_b_stands_above():
    a, b = [1.0, 2.0, 4.0], [1.1, 2.6, 4.8]  # 1.1, 1.3 and 1.2 in the rounds
    assert pair_ratio(a, b) == pytest.approx(1.2) and pair_ratio(b, a) == pytest.approx(1 / 1.2)
    assert pair_ratio(a[:2], b[:2]) == pytest.approx(math.sqrt(1.1 * 1.3)), "between two, the geometric mean"


# Verdicts

UP, DOWN = math.inf, -math.inf
HIGH, LOW = 1.02, 1 / 1.02


@pytest.mark.parametrize(
    ("ratio", "low", "high", "expected"),
    [
        (1.0, LOW, HIGH, "same"),
        (1.0, math.nextafter(LOW, DOWN), HIGH, "too noisy"),
        (1.0, LOW, math.nextafter(HIGH, UP), "too noisy"),
        (math.nextafter(HIGH, UP), math.nextafter(1, UP), 1.5, "slower"),
        (HIGH, math.nextafter(1, UP), 1.5, "too noisy"),
        (1.3, 1.0, 1.5, "too noisy"),
        (math.nextafter(LOW, DOWN), 0.5, math.nextafter(1, DOWN), "faster"),
        (LOW, 0.5, math.nextafter(1, DOWN), "too noisy"),
        (0.7, 0.5, 1.0, "too noisy"),
        (1.015, 1.01, 1.019, "same"),  # surely slower, by what is none
        (0.985, 0.981, 0.99, "same"),
    ],
)
def test_a_verdict_on_both_sides_of_each_threshold(ratio, low, high, expected):
    assert verdict(ratio, low, high) == expected


def result(ratio=1.05, low=1.03, high=1.07, verdict="slower", pairs=10):
    return Result(ratio, low, high, verdict, pairs)


@pytest.mark.parametrize(
    ("found", "limit", "surely", "perhaps"),
    [
        (result(low=1.25), 0.25, False, False),
        (result(low=math.nextafter(1.25, UP)), 0.25, True, False),
        (result(low=1.1, high=1.25), 0.25, False, False),
        (result(low=1.1, high=math.nextafter(1.25, UP)), 0.25, False, True),
        (result(low=1.3, high=1.4), 0.25, True, False),
        (result(low=1.001, high=1.02, verdict="same"), 0.0, True, False),  # whatever the verdict is
        (result(low=0.999, high=1.02, verdict="same"), 0.0, False, True),
        (result(low=0.9, high=0.99, verdict="faster"), 0.0, False, False),
    ],
)
def test_a_limit_on_both_sides(found, limit, surely, perhaps):
    assert (found.surely_slower(limit), found.perhaps_slower(limit)) == (surely, perhaps)


@pytest.mark.parametrize(
    ("half", "pairs", "needed"),
    [
        (0.031, 10, 43),  # its width shrinks with the root: 10 × (3.1 % / 1.5 %)² = 42.7
        (0.02, 5, 9),
        (0.001, 10, 12),
        (math.inf, 3, 5),
    ],
)
def test_how_many_pairs_would_tell(half, pairs, needed):
    low, high = 1.1 * math.exp(-half), 1.1 * math.exp(half)
    assert result(1.1, low, high, "too noisy", pairs).pairs_needed() == needed
    assert result(low=1.0, high=1.0, pairs=7).pairs_needed() == result(low=0.0, high=2.0, pairs=7).pairs_needed() == 5


# Comparisons of a side with itself


@pytest.mark.parametrize(("false", "found"), [(0, 300), (3, 280), (299, 1), (300, 0)])
def test_the_limits_of_a_rate_are_where_the_binomial_leaves_five_percent(false, found):
    check = comparison.SelfCheck.of(300, false, found)
    assert (
        check.false_at_most == 1
        if false == 300
        else stats.binom.cdf(false, 300, check.false_at_most) == pytest.approx(0.05)
    )
    assert (
        check.found_at_least == 0
        if not found
        else stats.binom.sf(found - 1, 300, check.found_at_least) == pytest.approx(0.05)
    )


@pytest.fixture
def asked(monkeypatch):
    """What `compare` is asked, and the verdicts that it gives in turn."""
    seen, verdicts = [], ["slower", "slower", "faster", "same", "too noisy", "faster", "faster", "same"]

    def compare(ratios, confidence):
        seen.append((np.log(ratios), confidence))
        return result(verdict=verdicts[(len(seen) - 1) % len(verdicts)])

    monkeypatch.setattr(comparison, "compare", compare)
    return seen


def test_a_self_check_draws_pairs_without_replacement_and_swaps_their_sides(asked):
    logs = np.linspace(0.01, 0.12, 12)
    found = self_check(np.exp(logs), 12, 4, 0.9)
    assert (found.comparisons, found.false, found.found) == (4, 3, 1), (
        "false by the plain ones, found by those made slower"
    )
    plain, slowed = asked[::2], asked[1::2]
    assert all(confidence == 0.9 for _, confidence in asked)
    for (drawn, _), (other, _) in zip(plain, slowed, strict=True):
        assert np.sort(np.abs(drawn)) == pytest.approx(logs) and {*np.sign(drawn)} == {-1, 1}
        assert other - drawn == pytest.approx(math.log(1.05))
    assert not np.allclose(plain[0][0], plain[1][0])


def test_a_self_check_draws_as_many_as_it_is_told(asked):
    self_check(np.exp(np.linspace(0.01, 0.3, 30)), 10, 2, slowdown=0.2)
    assert [len(drawn) for drawn, _ in asked] == [10] * 4 and asked[1][0] - asked[0][0] == pytest.approx(math.log(1.2))
    assert {confidence for _, confidence in asked} == {0.99}
    first = [drawn.tolist() for drawn, _ in asked]
    self_check(np.exp(np.linspace(0.01, 0.3, 30)), 10, 2, slowdown=0.2)
    assert [drawn.tolist() for drawn, _ in asked[4:]] == first, "the same pairs, the same figures"


def test_the_constants_of_a_comparison():
    assert (comparison.SAME, comparison.PAIRS, comparison.FEWEST, comparison.WIDEST, comparison.RESAMPLES) == (
        0.02,
        10,
        5,
        2,
        4000,
    )
