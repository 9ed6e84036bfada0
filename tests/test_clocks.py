"""The two clocks: what they say of each other, by known figures and by faults planted in a simulated GPU."""

from __future__ import annotations

import itertools

import pytest
from simulated import SimulatedGpu, two_kernels

from fusebench.timing.clocks import Check, agreement
from fusebench.timing.cupti import Kernel
from fusebench.timing.plan import REGIMES, Plan
from fusebench.timing.summary import Clocks

FINE = [(1.0, 1.0)]  # profiles


def says(checks, profiles=FINE, host=0.0, run=1):
    return agreement(checks, profiles, host, run).says


def test_without_isolated_calls_there_is_nothing_to_say():
    assert agreement([], [], 0.0, 1) is None


def test_what_is_kept_are_the_medians():
    checks = [Check(5.0, 3.0, 1.0, 0.1), Check(6.0, 2.0, 1.5, 0.0), Check(4.0, 2.5, 1.2, 0.4)]
    assert agreement(checks, FINE, 7.0, 1) == Clocks(
        "n/a", wall=5.0, span=2.5, busy=1.2, gap=0.1, host=7.0, reason=None
    )
    assert agreement([Check(1.0, 1.0, 1.0, 0.0)], FINE, 0.0, 1).reason is None


@pytest.mark.parametrize(("wall", "most"), [(1e-3, 1001.5e-6), (1e-6, 1.501e-6)])
@pytest.mark.parametrize("figure", ["span", "busy"])
def test_no_kernel_outlasts_its_call(wall, most, figure):
    """By more than 0.1 % and half a microsecond."""

    def check(took):
        return Check(wall, **{"span": 0.0, "busy": 0.0, figure: took}, gap=0.0)

    good = check(0.0)
    assert says([good, check(most * (1 - 1e-6)), good], host=1.0) == "n/a"
    assert says([good, check(most * (1 + 1e-6)), good], host=1.0) == "contradicts", "one of three suffices"


def test_what_is_allowed_may_be_reached():
    assert says([Check(0.0, 0.5e-6, 0.5e-6, 0.0)], host=1.0) == "n/a"
    assert says([Check(1.0, 1.0, 1.0, 0.0)], [(0.0, 1e-3)]) == "agrees"
    assert says([Check(51.0, 50.0, 50.0, 0.0)]) == "agrees", "2 % of 50"


def test_a_kernel_that_outlasts_its_call_is_named_in_microseconds():
    reason = agreement([Check(12.5e-6, 31.25e-6, 20e-6, 0.0)], FINE, 1.0, 1).reason
    assert reason == "CUPTI saw kernels for 31.25 µs in a call that took 12.50 µs by the wall clock"


@pytest.mark.parametrize(("profiles", "allowed"), [(1, 0.1 + 0.001), (4, 0.1 + 0.004)])
@pytest.mark.parametrize("sign", [1, -1])
def test_both_clocks_advance_alike_over_all_profiles(profiles, allowed, sign):
    """Within 5 % of what the wall shows, here two seconds, and a millisecond a profile."""

    def differing(by):
        return [(2.0 / profiles, (2.0 + sign * by) / profiles)] * profiles

    check = [Check(1.0, 1.0, 1.0, 0.0)]
    assert says(check, differing(allowed - 1e-6)) == "agrees"
    assert says(check, differing(allowed + 1e-6)) == "contradicts"


def test_profiles_differ_together_not_one_by_one():
    assert says([Check(1.0, 1.0, 1.0, 0.0)], [(2.0, 3.0), (2.0, 1.0)]) == "agrees"


def test_clocks_that_advance_differently_are_named_in_milliseconds():
    reason = agreement([Check(1.0, 1.0, 1.0, 0.0)], [(0.25, 0.125)], 0.0, 1).reason
    assert reason == "while the wall clock advanced by 250 ms, CUPTI's did by 125 ms"


@pytest.mark.parametrize("run", [1, 3])
def test_the_second_clock_tells_nothing_below_five_times_the_host_s_time(run):
    """Of the row of `run` calls: here the wall shows three times what CUPTI does."""
    for factor, expected in ((1 - 1e-6, "n/a"), (1.0, "n/a"), (1 + 1e-6, "contradicts")):
        span = factor * 5 * 2**-20 * run
        assert says([Check(3 * span, span, span, 0.0)], host=2**-20, run=run) == expected


@pytest.mark.parametrize(
    ("host", "gap"), [(1e-5, 0.0), (0.0, 1e-5), (2e-5, 3e-5)], ids=["launching", "waiting", "both"]
)
def test_the_wall_may_show_twice_the_host_s_time_and_2_percent_more(host, gap):
    span, busy = 1e-3, 0.5e-3
    most = 1e-3 + 2 * (host + gap) + 2e-5
    assert says([Check(most - 1e-9, span, busy, gap)], host=host) == "agrees"
    assert says([Check(most + 1e-9, span, busy, gap)], host=host) == "contradicts"


def test_work_that_is_not_explained_is_named_in_microseconds():
    checks = [Check(3e-3, 1e-3, 1e-3, 5e-6), Check(2e-3, 1.25e-3, 1e-3, 2.5e-6), Check(4e-3, 1e-3, 1e-3, 0.0)]
    assert agreement(checks, FINE, 10e-6, 1).reason == (
        "the wall clock shows 2000.00 µs, CUPTI's kernels 1250.00 µs; launching and waiting explain 12.50 µs"
    ), "the check with the least excess"


def test_one_call_without_unseen_work_clears_the_others():
    late, fine = Check(9e-3, 1e-3, 1e-3, 0.0), Check(1e-3, 1e-3, 1e-3, 0.0)
    assert says([late, late, fine]) == says([fine, late, late]) == "agrees"


def test_checks_that_could_not_tell_a_call_from_two_do_not_count():
    """Where half of them or more are such, no check counts."""
    told, drowned = Check(3.0, 1.0, 1.0, 0.0), Check(3.0, 1.0, 1.0, 0.5)
    assert says([told, told, drowned]) == "contradicts"
    assert says([told, drowned]) == says([told, drowned, drowned]) == "n/a"
    nearly = Check(3.0, 1.0, 1.0, 0.5 - 1e-6)
    assert says([nearly]) == "contradicts"
    assert says([Check(3.0, 1.0, 1.0, 0.375 - 1e-6)], host=0.125) == "contradicts"
    assert says([Check(3.0, 1.0, 1.0, 0.375)], host=0.125) == "n/a"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda ks: [Kernel(k.name, k.start * 2, k.end * 2) for k in ks], "in a call that took"),
        (lambda ks: [k for k in ks if k.name != "second"], "launching and waiting explain"),
        (lambda ks: [Kernel(k.name, k.start / 2, k.end / 2) for k in ks], "while the wall clock advanced by"),
    ],
    ids=["CUPTI's clock runs fast", "CUPTI misses a kernel", "CUPTI's clock runs slow"],
)
@pytest.mark.parametrize("regime", REGIMES)
def test_clocks_that_contradict_each_other_are_found(monkeypatch, fault, reason, regime):
    gpu = SimulatedGpu(monkeypatch, fault)
    clocks = gpu.measure(two_kernels(gpu, 2e-3), Plan(regime=regime)).clocks
    assert clocks.says == "contradicts" and reason in clocks.reason


@pytest.mark.parametrize(("often", "says"), [(5, "contradicts"), (1, "n/a")])
def test_a_late_host_hides_no_missing_kernel_unless_it_is_late_every_time(monkeypatch, often, says):
    """Each `often`-th wait ends 10 ms late: a check whose flushes are waited for so long tells nothing of a call of 2 ms."""
    gpu = SimulatedGpu(monkeypatch, lambda kernels: [k for k in kernels if k.name != "second"])
    gpu.late_s = itertools.cycle([0.0] * (often - 1) + [10e-3])

    def wobbling(_):
        gpu.launch("first", 1e-3 * (1 + 0.1 * (gpu.calls * 0.618 % 1)))
        gpu.launch("second", 1e-3)

    assert gpu.measure(wobbling, Plan()).clocks.says == says


def test_work_that_the_device_does_unseen_is_found(monkeypatch):
    """The call's second half runs where CUPTI does not look: the wall clock waits for it."""
    gpu = SimulatedGpu(monkeypatch)

    def call(_):
        gpu.launch("seen", 1e-3)
        gpu.device += 1e-3

    assert gpu.measure(call, Plan()).clocks.says == "contradicts"
