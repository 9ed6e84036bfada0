"""What is asked of the clock, and the arithmetic of its samples: rings, intervals, when there are enough, what a record keeps."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom
from simulated import Array

from fusebench.errors import UsageError
from fusebench.timing.clocks import Check, agreement
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Ring, Samples, enough, median_interval, quartiles, together, uncertainty
from fusebench.timing.state import State
from fusebench.timing.summary import StateRange, Timing


@pytest.mark.parametrize(
    ("device", "asked", "regime", "cache"),
    [
        ("cuda", Plan(), "queued", "cold"),
        ("cuda", Plan(cache="warm"), "queued", "warm"),
        ("cuda", Plan(regime="isolated"), "isolated", "cold"),
        ("cuda", Plan(regime="isolated", cache="warm"), "isolated", "warm"),
        ("cuda", Plan(regime="sustained"), "sustained", "warm"),
        ("cpu", Plan(), "isolated", "warm"),
        ("cpu", Plan(cache="cold"), "isolated", "cold"),
        ("cpu", Plan(regime="sustained", cache="warm"), "sustained", "warm"),
    ],
)
def test_the_regime_follows_the_device(device, asked, regime, cache):
    decided = asked.on(device)
    assert (decided.regime, decided.cache) == (regime, cache)
    assert decided.on(device) == decided


def test_a_plan_keeps_what_is_not_auto():
    assert Plan(0.1, 0.2, calls=3).on("cpu") == Plan(0.1, 0.2, "isolated", "warm", 3)
    assert Plan() == Plan(0.5, 0.01, "auto", "auto", 1000)
    assert hash(Plan()) == hash(Plan())


@pytest.mark.parametrize(
    ("device", "plan", "message"),
    [
        ("cpu", Plan(regime="queued"), "no stream to queue in"),
        ("cuda", Plan(regime="sustained", cache="cold"), "no room for a flush"),
        ("cpu", Plan(regime="sustained", cache="cold"), "no room for a flush"),
        ("cuda", Plan(regime="isolatd"), "regime.*did you mean isolated"),
        ("cuda", Plan(regime=""), "regime.*auto, isolated, queued, sustained"),
        ("cuda", Plan(cache="could"), "cache.*did you mean cold"),
        ("cuda", Plan(cache=""), "cache.*auto, cold, warm"),
        ("cpu", Plan(time_s=0), "time_s is 0"),
        ("cpu", Plan(time_s=-1.0), "time_s is -1.0"),
        ("cpu", Plan(time_s=math.inf), "time_s is inf"),
        ("cpu", Plan(time_s=math.nan), "time_s is nan"),
        ("cpu", Plan(target=-1e-9), "target is -1e-09"),
        ("cpu", Plan(target=1), "target is 1"),
        ("cpu", Plan(target=math.nan), "target is nan"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(device, plan, message):
    with pytest.raises(UsageError, match=message):
        plan.on(device)


@pytest.mark.parametrize("plan", [Plan(target=0), Plan(target=0.999), Plan(time_s=1e-9), Plan(time_s=1e9)], ids=str)
def test_a_plan_at_the_edge_is_taken(plan):
    assert plan.on("cuda").on("cuda").regime == "queued"


def test_a_ring_copies_what_a_call_may_overwrite():
    sets = [[Array(1), Array(2), Array(3)], [Array(4), Array(5), Array(6)]]
    ring = Ring(sets, frozenset([0, 2]), Array.copy)
    first, again = ring[1], ring[1]
    assert [a.content for a in first] == [4, 5, 6] and len(ring) == 2
    assert [a is b for a, b in zip(first, sets[1], strict=True)] == [False, True, False]
    assert [a is b for a, b in zip(first, again, strict=True)] == [False, True, False]


@pytest.mark.parametrize(("count", "size", "expected"), [(10, 2**28, 8), (5, 2**28, 5), (10, 2**40, 1), (10, 0, 10)])
def test_copies_that_wait_take_4_gib_with_their_twins(count, size, expected):
    """A call has copies of two inputs here."""
    ring = Ring(
        [[Array(nbytes=size // 4), Array(nbytes=2**50), Array(nbytes=size * 3 // 4)]], frozenset([0, 2]), Array.copy
    )
    assert ring.copied_bytes == size and together(ring, count) == expected
    assert together([[Array(nbytes=2**60)]], count) == count, "a list makes none"


@pytest.mark.parametrize("n", [*range(1, 40), 100, 1000])
def test_the_interval_of_the_median_is_that_of_the_binomial(n):
    """The narrowest pair of k-th smallest and k-th largest between which the median lies in 95 % of all samples. It lies below
    the k-th smallest where fewer than k samples lie below the median."""
    ranks = [k for k, below in enumerate(binom.cdf(range(n // 2), n, 0.5), 1) if 1 - 2 * below >= 0.95]
    samples = np.random.default_rng(n).permutation(n).tolist()
    assert median_interval(samples) == ((max(ranks) - 1, n - max(ranks)) if ranks else None)
    assert (median_interval(samples) is None) is (n < 6)


def test_the_interval_of_the_median_holds_it_as_often_as_it_says():
    """Order statistics need no distribution: a skewed one here, whose median is log 2."""
    draws = np.random.default_rng(0).exponential(size=(500, 21))
    low, high = zip(*map(median_interval, draws), strict=True)
    held = np.mean((np.asarray(low) <= np.log(2)) & (np.asarray(high) >= np.log(2)))
    assert 0.93 <= held <= 0.995


@pytest.mark.parametrize("n", [2, 3, 6, 21, 40])
def test_quartiles_are_interpolated(n):
    samples = np.random.default_rng(n).exponential(size=n)
    assert quartiles(samples) == pytest.approx(statistics.quantiles(samples, n=4, method="inclusive"))


def test_uncertainty_is_half_the_interval_as_a_share_of_the_median():
    assert uncertainty([7.0, 9.0, 10.0, 11.0, 12.0, 8.5]) == pytest.approx((12 - 7) / 2 / 9.5)
    assert uncertainty([1.0] * 5) == math.inf and uncertainty([1.0] * 6) == 0


@pytest.fixture
def clock(monkeypatch):
    """It stands at 100 s."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)
    return clock


def wide(count):
    """Samples whose median is not known."""
    return [1.0, 3.0] * (count // 2) + [1.0] * (count % 2)


@pytest.mark.parametrize(
    ("count", "slow", "over"), [(5, False, False), (6, False, True), (2, True, False), (3, True, True)]
)
def test_the_time_ends_six_samples_or_three_slow_ones(clock, count, slow, over):
    """Slow is what takes longer than all of the time, by the last sample."""
    samples = Samples("wall", Plan(time_s=0.5), time=[0.1] * (count - 1) + [0.51 if slow else 0.5])
    assert not enough(samples, 100.001)
    assert enough(samples, 100.0) is enough(samples, 99.0) is over


def test_without_a_sample_there_are_not_enough(clock):
    assert not enough(Samples("wall", Plan()), 0.0)


@pytest.mark.parametrize(("count", "over"), [(6, False), (7, True), (8, True)])
def test_the_number_of_calls_ends_sampling(clock, count, over):
    assert enough(Samples("wall", Plan(calls=7), time=wide(count)), math.inf) is over


def test_the_interval_is_looked_at_each_twenty_samples(clock):
    samples = Samples("wall", Plan(target=0.01))
    looked = []
    for count in range(1, 65):
        samples.time = [1.0] * count
        if enough(samples, math.inf):
            looked.append(count)
    assert looked == [20, 40, 60]


def test_a_look_that_comes_late_delays_the_next(clock):
    samples = Samples("wall", Plan(target=0.01), time=wide(25))
    assert not enough(samples, math.inf)
    for count, over in ((44, False), (45, True)):
        samples.time = [1.0] * count
        assert enough(samples, math.inf) is over


@pytest.mark.parametrize(("target", "over"), [(0.2499, False), (0.25, True), (0.3, True), (0.0, False)])
def test_sampling_ends_at_the_target(clock, target, over):
    """Of 20 samples the 6th and the 15th enclose the median: 0.75 and 1.25 of it here. A target of 0 is never met."""
    times = [0.5] * 5 + [0.75] * 4 + [1.0] * 2 + [1.25] * 4 + [2.0] * 5
    samples = Samples("wall", Plan(target=target), time=times)
    assert enough(samples, math.inf) is over
    assert samples.summary().target_missed is (target == 0.2499)
    assert not enough(Samples("wall", Plan(target=0.0), time=[1.0] * 20), math.inf)


def test_to_stop_when_the_median_is_known_leaves_it_known():
    """Noise of 3 % needs some 80 samples for 1 %. To look after each of them would find 8 % of the intervals wrong."""
    rng, missed, count = np.random.default_rng(0), 0, 200
    for _ in range(count):
        samples = Samples("wall", Plan())
        while not enough(samples, math.inf):
            samples.time.append(1 + 0.03 * rng.standard_normal())
        low, high = median_interval(samples.time) or (0, 0)
        missed += not low <= 1 <= high
    assert missed <= 0.075 * count


def test_a_record_keeps_what_was_measured():
    times, plan = [4.0, 1.0, 3.0, 2.0, 6.0, 5.0, 7.0], Plan(0.5, 0.02, "queued", "cold")
    checks, profiles = [Check(12.0, 10.0, 9.0, 0.5)], [(20.0, 20.0)]
    samples = Samples(
        "cupti", plan, times, [3.0, 1.0, 2.0], [0.3, 0.1, 0.4, 0.2], checks, profiles, run=8, launches=2, kernels=["a", "b"],
        discarded=20, energy_j=0.25, states=[State(sm_mhz=1980), State(sm_mhz=1755)],
    )  # fmt: skip
    assert samples.summary() == Timing(
        timer="cupti", regime="queued", cache="cold", run=8,
        samples=tuple(times), median=4.0, q1=2.5, q3=5.5, interval=(1.0, 7.0), uncertainty=0.75,
        target=0.02, target_missed=True, busy=(3.0, 1.0, 2.0), busy_median=2.0,
        host=(0.3, 0.1, 0.4, 0.2), host_median=0.25, clocks=agreement(checks, profiles, 0.25, 8),
        launches=2, kernels=("a", "b"), discarded=20, energy_j=0.25, state=StateRange(sm_mhz=(1755, 1980)),
    )  # fmt: skip


def test_the_second_clock_knows_the_run_and_the_host_s_time():
    """It tells nothing where the span is at most five times the host's time of all calls of the row."""
    check = Check(3e-3, 1e-3, 1e-3, 0.0)
    for run, host, says in (
        (1, [1e-5], "contradicts"),
        (20, [1e-5], "n/a"),
        (1, [2e-4], "n/a"),
        (1, [], "contradicts"),
    ):
        samples = Samples("cupti", Plan(), [1.0], host=host, check=[check], run=run)
        samples.profiles = [(1.0, 1.0)]
        assert samples.summary().clocks.says == says


def test_a_record_of_few_samples_has_no_interval():
    found = Samples("wall", Plan(), [1.0, 2.0, 3.0]).summary()
    absent = ("interval", "uncertainty", "busy_median", "host_median", "clocks", "launches", "energy_j")
    assert [getattr(found, name) for name in absent] == [None] * len(absent)
    assert found.target_missed and (found.run, found.discarded, found.state) == (1, 0, StateRange())
    assert found.busy == found.host == found.kernels == ()
    assert not Samples("wall", Plan(target=0), [1.0, 2.0, 3.0]).summary().target_missed
