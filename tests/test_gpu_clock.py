"""Timing on a GPU, on a simulated one."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace

import pytest
from simulated import LAUNCH_S, WAIT_S, WATTS, Array, SimulatedGpu, two_kernels

from fusebench.timing import gpu as clock
from fusebench.timing.cupti import Kernel
from fusebench.timing.plan import Plan
from fusebench.timing.samples import DRAWN, Ring
from fusebench.timing.state import State
from fusebench.timing.summary import StateRange


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(0.3), 200e-6),
        (Plan(0.3, cache="warm"), 200e-6),
        (Plan(0.3, regime="isolated"), LAUNCH_S + 200e-6 + WAIT_S),
        (Plan(0.3, regime="isolated", cache="warm"), LAUNCH_S + 200e-6 + WAIT_S),
        (Plan(0.3, regime="sustained"), 200e-6),
    ],
)
def test_each_regime_measures_what_it_says(monkeypatch, plan, expected):
    gpu = SimulatedGpu(monkeypatch)
    found = gpu.measure(two_kernels(gpu), plan)
    assert found.median == pytest.approx(expected, rel=1e-3)
    assert (found.launches, found.kernels) == (2, ("first", "second"))
    assert found.clocks.says == "agrees" and found.state == StateRange(sm_mhz=(1980, 1980))
    assert found.energy_j > 0 and not found.target_missed


def test_isolated_calls_are_timed_without_the_profiler(monkeypatch):
    """Here it costs 20 µs a launch."""
    gpu = SimulatedGpu(monkeypatch)
    gpu.profiler_s = 20e-6
    found = gpu.measure(lambda _: gpu.launch("k", 400e-6), Plan(0.1, regime="isolated"))
    assert found.median == pytest.approx(LAUNCH_S + 400e-6 + WAIT_S, rel=1e-3)
    assert found.clocks.wall > found.median + 15e-6, "the checks are profiled"


def test_launches_do_not_enter_a_queued_time_but_a_sustained_one(monkeypatch):
    """The host takes 50 µs for each kernel of 10."""
    gpu = SimulatedGpu(monkeypatch)
    queued = gpu.measure(two_kernels(gpu, 20e-6, 50e-6), Plan(0.1))
    assert queued.median == pytest.approx(20e-6) and queued.clocks.says == "n/a"
    sustained = SimulatedGpu(monkeypatch)
    row = sustained.measure(two_kernels(sustained, 20e-6, 50e-6), Plan(0.1, regime="sustained"))
    assert row.median == pytest.approx(100e-6, rel=0.05)


@pytest.mark.parametrize(("seconds", "expected"), [(2e-6, LAUNCH_S), (20e-6, 20e-6), (200e-6, 200e-6)])
def test_the_profiler_does_not_enter_a_sustained_time(monkeypatch, seconds, expected):
    """Here it costs 20 µs a launch: more than the first two kernels take, of which the second hides a launch without it."""
    gpu = SimulatedGpu(monkeypatch)
    gpu.profiler_s = 20e-6
    found = gpu.measure(lambda _: gpu.launch("k", seconds), Plan(0.1, regime="sustained"))
    assert found.median == pytest.approx(expected, rel=0.01)
    assert found.timer == ("cupti" if seconds > 100e-6 else "wall")


def test_launches_of_flushes_do_not_use_up_what_the_flushes_are_for(monkeypatch):
    """A flush takes the host more than half as long as the device: six of them are launched as the call should be."""
    gpu = SimulatedGpu(monkeypatch)
    gpu.flush_host_s = 60e-6
    assert gpu.measure(two_kernels(gpu, 20e-6, 200e-6), Plan(0.1)).median == pytest.approx(20e-6)


@pytest.mark.parametrize(
    "plan", [Plan(0.1), Plan(0.1, cache="warm"), Plan(0.1, regime="isolated"), Plan(0.1, regime="sustained")]
)
def test_a_call_that_takes_ten_budgets_is_made_a_few_times(monkeypatch, plan):
    """One to warm up, one for the host, three samples with a check, or a warm-up, or both, each; and one to count launches."""
    gpu = SimulatedGpu(monkeypatch)
    assert len(gpu.measure(two_kernels(gpu, 5.0), plan).samples) == 3
    assert gpu.calls <= 2 + 1 + 3 * 4


def test_sustained_calls_last_20_ms_however_long_the_copies_of_their_inputs_take(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    gpu.copy_s = 1e-3
    ring = Ring([[Array()], [Array()]], frozenset([0]), gpu.copy)
    samples = gpu.samples(two_kernels(gpu), Plan(regime="sustained"), ring)
    assert samples.kernels_seen == set(samples.kernels) and samples.kernels
    assert samples.run == 100 and all(check.wall == pytest.approx(0.02, rel=0.01) for check in samples.check)


def test_a_power_cap_is_kept_with_the_times(monkeypatch):
    gpu = SimulatedGpu(
        monkeypatch, states=[State(power_capped=False, power_w=300.0), State(power_capped=True, power_w=700.0)]
    )
    assert gpu.measure(two_kernels(gpu), Plan(0.1)).state == StateRange(power_w=(300.0, 700.0), power_capped=True)


def test_a_wobbling_call_takes_more_samples_than_a_steady_one(monkeypatch):
    counts = []
    for wobble in (0.0, 1.0):
        gpu = SimulatedGpu(monkeypatch)

        def call(_, gpu=gpu, wobble=wobble):
            gpu.launch("k", 200e-6 * (1 + wobble * (gpu.calls * 0.618 % 1)))

        counts.append(len(gpu.measure(call, Plan(0.1)).samples))
    assert counts[0] < counts[1]


def squeezed(log):
    return re.sub("w+", "w", log)


def chunks(gpu):
    """What the host does between one reading of the state and the next, of each pair of readings."""
    return gpu.log.split("s")[1::2]


@pytest.mark.parametrize(
    ("cache", "queued", "isolated"), [("cold", "fff{0}", "wfffw{0}w"), ("warm", "fff{0}{0}", "wfffw{0}w{0}w")]
)
def test_queued_calls_stand_behind_flushes_with_two_isolated_among_them(monkeypatch, cache, queued, isolated):
    """Twenty queued ones, three input sets in turn; with warm caches each behind a call of the same inputs."""
    gpu = SimulatedGpu(monkeypatch)
    gpu.measure(two_kernels(gpu), Plan(0.1, cache=cache))
    turns = "".join((isolated if i in (6, 14) else queued).format(i % 3) for i in range(22))
    assert chunks(gpu) == [squeezed(f"w[fw{turns}w]")]
    profiles = re.findall(r"\[(.*?)\]", gpu.log)[:-1]
    assert profiles == (["ffffw"] if cache == "cold" else ["ffffw", "fff0w"]), "the flush, and the launches of a call"


@pytest.mark.parametrize(("cache", "turn"), [("cold", "fffw{0}w"), ("warm", "fffw{0}w{0}w")])
def test_isolated_calls_find_an_idle_device(monkeypatch, cache, turn):
    """Twenty without the profiler, two checked with it."""
    gpu = SimulatedGpu(monkeypatch)
    gpu.measure(two_kernels(gpu), Plan(0.1, regime="isolated", cache=cache))
    timed, checked = ("".join(turn.format(i % 3) for i in numbers) for numbers in (range(20), (20, 21)))
    assert chunks(gpu) == [f"w{timed}[fw{checked}]"]


@pytest.mark.parametrize("busy", [True, False])
def test_sustained_calls_follow_one_another(monkeypatch, busy):
    """Two rows of 20 calls; where the device waits for the host each is made once more without the profiler."""
    gpu = SimulatedGpu(monkeypatch)
    gpu.measure(
        two_kernels(gpu, 1e-3 if busy else 1e-4, LAUNCH_S if busy else 5e-4), Plan(0.1, regime="sustained", calls=2)
    )
    flushes = "f" * (11 if busy else 16)  # as long as the call, or more than launching it takes
    rows = ["".join(str((first + i) % 3) for i in range(20)) for first in (0, 20)]
    again = "" if busy else flushes + "w{0}w"
    assert chunks(gpu) == [f"w[fw{flushes}w{{0}}w]{again and 'w'}{again}".format(row) for row in rows]


@pytest.mark.parametrize("regime", ["queued", "isolated", "sustained"])
def test_the_number_of_calls_limits_the_samples(monkeypatch, regime):
    gpu = SimulatedGpu(monkeypatch)
    assert len(gpu.samples(two_kernels(gpu), Plan(regime=regime, target=0, time_s=1.0, calls=27)).time) == 27


def test_the_second_chunk_goes_on_where_the_first_ended(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    gpu.measure(two_kernels(gpu), Plan(0.1, target=0, calls=27))
    first, second = (re.sub("[^012]", "", chunk) for chunk in chunks(gpu))
    assert (len(first), len(second)) == (22, 9), "two checks each"
    assert first.startswith("012012") and second.startswith("201201")


@pytest.mark.parametrize(
    ("seconds", "host_s", "flush_host_s", "flushes"),
    [
        (20e-6, 1e-6, 5e-6, 3),  # at least
        (20e-6, 200e-6, 5e-6, 7),  # 1.5 × 400 µs of launches ÷ 95 µs that a flush takes longer than its own
        (20e-6, 199e-6, 60e-6, 15),  # ÷ 40
        (20e-6, 199e-6, 95e-6, 60),  # ÷ 10, a tenth of a flush
        (2e-3, 5e-6, 5e-6, 21),  # as long as the call
        (4.95e-3, 5e-6, 5e-6, 50),
        (20e-3, 5e-6, 5e-6, 50),  # at most
    ],
)
@pytest.mark.parametrize("regime", ["queued", "sustained"])
def test_flushes_outlast_launches_and_last_as_long_as_the_call(
    monkeypatch, seconds, host_s, flush_host_s, flushes, regime
):
    gpu = SimulatedGpu(monkeypatch)
    gpu.flush_host_s = flush_host_s
    gpu.measure(two_kernels(gpu, seconds, host_s), Plan(regime=regime, time_s=0.2))
    assert {len(found) for found in re.findall("f+(?=w?[012])", chunks(gpu)[0])} == {flushes}


def test_a_slow_launch_now_and_then_adds_no_flush(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    gpu.measure(lambda _: gpu.launch("k", 20e-6, 1e-3 if gpu.calls % 10 == 0 else 5e-6), Plan(time_s=0.1))
    assert "fff0fff1" in chunks(gpu)[0]


class Marked:
    """A call whose work tells which one it is: of two kernels with a pause of 30 µs, in a profile 1 µs longer each time.
    Where calls have a warm-up, that is each second one, and takes 10 µs and not two."""

    def __init__(self, gpu, warm_up=False):
        self.gpu, self.warm_up, self.number = gpu, warm_up, 0

    def __call__(self, place):
        if self.warm_up and self.gpu.profiling and self.gpu.log[:-1].rstrip("w").endswith("f"):
            self.gpu.launch("warm-up", 5e-6)
            self.gpu.launch("warm-up", 5e-6)
            return "warm-up"
        number = self.number
        self.number += 1
        self.gpu.launch("first", 100e-6)
        self.gpu.device += 30e-6
        self.gpu.launch("second", (50 + number) * 1e-6)
        return place, number


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_each_queued_sample_is_of_its_own_call(monkeypatch, cache):
    """Time is the span, busy what the kernels alone take; the isolated calls, seventh and fifteenth, are no samples."""
    gpu = SimulatedGpu(monkeypatch)
    call = Marked(gpu)
    call.warm_up = cache == "warm"
    found = gpu.samples(call, Plan(0.1, cache=cache, target=0, calls=20))
    first = call.number - 22
    numbers = [n for n in range(22) if n not in (6, 14)]
    assert found.time == pytest.approx([(180 + first + n) * 1e-6 for n in numbers])
    assert found.busy == pytest.approx([(150 + first + n) * 1e-6 for n in numbers])
    assert [c.span for c in found.check] == pytest.approx([(180 + first + n) * 1e-6 for n in (6, 14)])
    assert [c.busy for c in found.check] == pytest.approx([(150 + first + n) * 1e-6 for n in (6, 14)])
    assert [c.wall for c in found.check] == pytest.approx([c.span + LAUNCH_S + WAIT_S for c in found.check])
    assert [c.gap for c in found.check] == pytest.approx([LAUNCH_S + WAIT_S] * 2)
    assert (found.timer, found.launches, found.kernels) == ("cupti", 2, ["first", "second"])


def test_isolated_samples_are_the_wall_s_and_their_kernels_those_of_the_checks(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    call = Marked(gpu)
    found = gpu.samples(call, Plan(0.1, regime="isolated", target=0, calls=20))
    first = call.number - 22
    assert found.time == pytest.approx([(180 + first + n) * 1e-6 + LAUNCH_S + WAIT_S for n in range(20)])
    assert found.busy == pytest.approx([(150 + first + n) * 1e-6 for n in (20, 21)])
    assert (found.timer, len(found.check)) == ("wall", 2)


def test_sustained_samples_are_means_of_a_row(monkeypatch):
    """Of 20 calls that take 1 ms each, and the pause of 0.1 ms between the kernels of the last but one."""
    gpu = SimulatedGpu(monkeypatch)
    kernels = itertools.count()

    def call(_):
        gpu.launch("first", 0.5e-3)
        gpu.device += 1e-4 if gpu.log[-20:-1].isdigit() else 0.0
        gpu.launch(f"second {next(kernels)}", 0.5e-3)

    found = gpu.samples(call, Plan(0.1, regime="sustained", calls=3))
    assert found.run == 20 and found.timer == "cupti"
    assert found.time == pytest.approx([20.1e-3 / 20] * 3) and found.busy == pytest.approx([1e-3] * 3)
    assert [c.span for c in found.check] == pytest.approx([20.1e-3] * 3)
    assert [c.busy for c in found.check] == pytest.approx([20e-3] * 3)
    assert [c.wall for c in found.check] == pytest.approx([20.1e-3 + LAUNCH_S + WAIT_S] * 3)
    assert [c.gap for c in found.check] == pytest.approx([LAUNCH_S + WAIT_S] * 3)
    assert found.kernels == ["first", f"second {next(kernels) - 20}"], "those of the row's first call"


@pytest.mark.parametrize(
    ("seconds", "launches", "run"),
    [
        (0.97e-3, 1, 21),  # 20 ms, rounded up
        (1.01e-3, 1, 20),
        (30e-3, 1, 2),  # two at least
        (1e-6, 1, 2000),  # 2000 kernels at most
        (1e-6, 3, 666),
    ],
)
def test_a_row_of_sustained_calls_lasts_20_ms_or_2000_kernels(monkeypatch, seconds, launches, run):
    gpu = SimulatedGpu(monkeypatch)

    def call(_):
        for _ in range(launches):
            gpu.launch("k", seconds, host_s=1e-6)

    assert gpu.measure(call, Plan(regime="sustained", time_s=0.1, calls=1)).run == run


@pytest.mark.parametrize(("busy", "timer"), [(0.894, "wall"), (0.897, "cupti")])
def test_a_device_that_waits_for_the_host_is_timed_by_the_wall(monkeypatch, busy, timer):
    """From the first kernel's start to the last one's end of 20 calls lie 19 pauses."""
    gpu = SimulatedGpu(monkeypatch)
    found = gpu.measure(lambda _: gpu.launch("k", busy * 1e-3, host_s=1e-3), Plan(0.1, regime="sustained", calls=1))
    assert (20 * busy / (20 * busy + 19 * (1 - busy)) > 0.9) is (timer == "cupti")
    assert found.timer == timer and found.busy_median == pytest.approx(busy * 1e-3)


@pytest.mark.parametrize(("hosts", "timer"), [((1e-4, 1e-3), "cupti"), ((1e-3, 1e-4), "wall")])
def test_the_first_row_decides_by_which_clock_all_are_timed(monkeypatch, hosts, timer):
    gpu = SimulatedGpu(monkeypatch)

    def call(_):
        gpu.launch("k", 0.5e-3, host_s=hosts[gpu.log.count("s") > 1])

    assert gpu.measure(call, Plan(0.1, regime="sustained", calls=3)).timer == timer


@pytest.mark.parametrize("count", [1, -1])
def test_a_sustained_row_whose_records_do_not_add_up_fails(monkeypatch, count):
    def seen(kernels):
        long = len(kernels) > 20
        return kernels[:-1] if long and count < 0 else [*kernels, *kernels[-1:]] if long else kernels

    gpu = SimulatedGpu(monkeypatch, seen)
    expected = f"recorded {40 + count} kernels of 20 calls with 2 launches each"
    with pytest.raises(RuntimeError, match=expected):
        gpu.measure(two_kernels(gpu, 1e-3), Plan(0.1, regime="sustained"))


def test_a_warm_call_that_misses_kernels_fails(monkeypatch):
    """The last of the chunk, which the warm-up's kernels must not stand for."""
    gpu = SimulatedGpu(monkeypatch, lambda kernels: kernels[:-1] if len(kernels) > 20 else kernels)
    with pytest.raises(RuntimeError, match="recorded 3 kernels of two calls with 2 launches each"):
        gpu.measure(two_kernels(gpu), Plan(0.1, cache="warm"))


def test_kernels_at_the_same_time_count_once_in_the_span_and_the_busy_time(monkeypatch):
    """A short one starts after a long one and ends before it."""
    gpu = SimulatedGpu(monkeypatch)

    def call(_):
        gpu.launch("long", 200e-6)
        gpu.kernels.append(Kernel("short", gpu.device - 100e-6, gpu.device - 50e-6))

    found = gpu.samples(call, Plan(0.1))
    assert found.time == pytest.approx([200e-6] * 20) == found.busy and found.launches == 2
    walls, extents = zip(*found.profiles, strict=True)
    assert walls == pytest.approx(extents, abs=1e-9), "from the end of the first flush to that of the last kernel"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], (0.022, 0.018)),
        ([(6e-3, 5.9e-3)], (0.022, 0.018)),  # the earlier half
        ([(6e-3, 5.9e-3), (15e-3, 14.9e-3)], (15e-3, 14.9e-3)),
        ([(15e-3, 9e-3)], (0.022, 0.018)),
    ],
)
def test_a_host_that_comes_back_late_from_the_last_wait_does_not_stand_for_a_clock(calls, expected):
    """(when an isolated call was over by the wall clock, by CUPTI), since the profile began"""
    profile = clock.ProfiledChunk([], began=7.0, first=100.0, wall=0.022, extent=0.018)
    turns = [clock.Turn(0, (), None, True, over=7.0 + wall) for wall, _ in calls]
    found = [SimpleNamespace(kernels=[Kernel("k", 100.0, 100.0 + cupti)]) for _, cupti in calls]
    queued = clock.Turn(0, (), None, False)
    assert profile.advance([*turns, queued], [*found, SimpleNamespace(kernels=[])]) == pytest.approx(expected)


def test_a_gap_is_never_negative(monkeypatch):
    gpu = SimulatedGpu(monkeypatch, lambda ks: [Kernel(k.name, k.start * 2, k.end * 2) for k in ks])
    for regime in ("queued", "sustained"):
        assert {c.gap for c in gpu.samples(two_kernels(gpu), Plan(0.1, regime=regime)).check} == {0.0}


@pytest.mark.parametrize(
    "plan", [Plan(0.1), Plan(0.1, cache="warm"), Plan(0.1, regime="isolated"), Plan(0.1, regime="sustained")], ids=str
)
def test_the_output_kept_is_that_of_the_last_call_on_the_last_set(monkeypatch, plan):
    """Not of its warm-up."""
    gpu = SimulatedGpu(monkeypatch)
    outputs = {}

    def call(place):
        two_kernels(gpu)(place)
        outputs[place] = gpu.calls
        return gpu.calls

    found = gpu.samples(call, plan)
    assert (found.output, found.arguments) == (outputs[2], (2,))


@pytest.mark.parametrize(
    "plan",
    [Plan(0.1), Plan(0.1, cache="warm"), Plan(0.1, regime="isolated"), Plan(0.01), Plan(0.1, target=0, calls=27)],
    ids=str,
)
def test_outputs_of_calls_that_are_drawn_are_taken_and_their_copies_are_in_no_time(monkeypatch, plan):
    """Drawn anew each time; as many samples as without, all of the call alone."""
    seen = set()
    for _ in range(4):
        gpu, taken = SimulatedGpu(monkeypatch), []

        def take(arguments, output, gpu=gpu, taken=taken):
            taken.append(gpu.calls)
            gpu.launch("copy of an output", 5e-3)
            gpu.wait(output)
            return None, output

        ring = Ring([[Array(7)]] * 3, frozenset([0]), gpu.copy, taken=take)
        found = gpu.samples(two_kernels(gpu), plan, ring)
        assert len(found.drawn) == min(DRAWN, found.offered) + 1, "and the last call's"
        assert found.offered >= 1 and (len(found.time) == 27 or plan.target)
        assert max(found.time) < 300e-6 and found.kernels_seen == {"first", "second"}
        seen.add(tuple(taken))
    assert len(seen) > 1 or plan.time_s < 0.1


@pytest.mark.parametrize(
    ("seconds", "nbytes", "plan", "offered"),
    [(5.0, 1000, Plan(0.1), 1), (20e-6, 3 * 2**30, Plan(0.1, target=0, calls=5), 0)],
    ids=["few calls", "one call at a time"],
)
def test_a_chunk_of_few_calls_has_one_to_draw_beside_one_with_a_time(monkeypatch, seconds, nbytes, plan, offered):
    """Else a slow call's outputs would not be drawn, or a call of large copies would never have a time."""
    gpu = SimulatedGpu(monkeypatch)
    ring = Ring([[Array(7, nbytes)]] * 3, frozenset([0]), gpu.copy, taken=lambda arguments, output: (None, output))
    found = gpu.samples(two_kernels(gpu, seconds), plan, ring)
    assert (found.offered, len(found.time)) == (offered, 3 if offered else 5)


def test_without_what_takes_them_no_call_more_is_made(monkeypatch):
    calls = []
    for taken in (None, lambda arguments, output: (None, [])):
        gpu = SimulatedGpu(monkeypatch)
        gpu.samples(
            two_kernels(gpu), Plan(0.1, target=0, calls=20), Ring([[Array(7)]], frozenset([0]), gpu.copy, taken=taken)
        )
        calls.append(gpu.calls)
    assert calls[1] == calls[0] + 4


@pytest.mark.parametrize(
    "plan", [Plan(0.1), Plan(0.1, cache="warm"), Plan(0.1, regime="isolated"), Plan(0.1, regime="sustained")], ids=str
)
def test_calls_that_overwrite_their_inputs_get_fresh_ones(monkeypatch, plan):
    """Made before the clock starts, and finished: no copy stands behind a flush or in a profile's records."""
    gpu = SimulatedGpu(monkeypatch)
    original = Array(7)

    def call(array, weight):
        assert array.content == 7 and array is not original and weight == "weight"
        array.content = 0
        two_kernels(gpu)(0)

    found = gpu.samples(call, plan, Ring([[original, "weight"]], frozenset([0]), gpu.copy))
    assert original.content == 7 and found.time[0] == pytest.approx(found.time[-1])
    for chunk in chunks(gpu):
        assert not re.search(r"c[f\[]|f[fw]*c", chunk), "a copy is not waited for, or stands behind a flush"
        if (
            plan.cache == "warm"
        ):  # each copy is read between the warm-up and the call, since the warm-up had another one
            assert "fffacafffaca" in chunk


def test_all_copied_inputs_of_a_warm_call_are_read_before_it(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    ring = Ring([[Array(), "weight", Array()]], frozenset([2, 0]), gpu.copy)
    gpu.measure(lambda *_: gpu.launch("k", 200e-6), Plan(0.1, cache="warm"), ring)
    assert "fffaccafffacca" in chunks(gpu)[0]


@pytest.mark.parametrize("regime", ["queued", "isolated", "sustained"])
def test_no_more_copies_wait_than_there_is_room_for(monkeypatch, regime):
    """Of 4 GiB, with a warm-up's each: two calls of 1 GiB at a time."""
    gpu = SimulatedGpu(monkeypatch)
    ring = Ring([[Array(nbytes=2**30)]], frozenset([0]), gpu.copy)
    gpu.measure(lambda _: gpu.launch("k", 200e-6), Plan(regime=regime, cache="auto", time_s=0.1), ring)
    assert max(map(len, re.findall("c+", gpu.log))) <= (4 if regime == "queued" else 2), "checks come beside them"
    assert max(map(len, re.findall("a+", gpu.log))) == 2


@pytest.mark.parametrize(
    ("cache", "time_s", "count"), [("cold", 0.1, 6), ("cold", 0.14, 9), ("warm", 0.2, 7), ("cold", 9.0, 20)]
)
def test_a_chunk_is_no_longer_than_the_time_that_is_left(monkeypatch, cache, time_s, count):
    """Calls of 10 ms, with warm caches twice, behind flushes of 5 ms: six in 100 ms."""
    gpu = SimulatedGpu(monkeypatch)
    gpu.measure(two_kernels(gpu, 10e-3), Plan(cache=cache, time_s=time_s))
    calls = len(re.findall("[012]", chunks(gpu)[0])) // (2 if cache == "warm" else 1)
    assert calls == count + 2


@pytest.mark.parametrize(
    ("seconds", "time_s", "runs"),
    [
        (0.1, 0.36, [1, 3]),  # no more than fit
        (10e-3, 0.16, [1, 10]),  # ten at most, and ten are enough in a fifth of a second …
        (10e-3, 8.0, [1] + [10] * 10),  # … and an eighth of the time otherwise
        (10e-3, 0.7, [1, 10]),  # 0.1 s for the energy
        (8e-3, 0.7, [1, 10, 10]),
    ],
)
def test_the_host_s_time_is_taken_from_runs_of_ten(monkeypatch, seconds, time_s, runs):
    gpu = SimulatedGpu(monkeypatch)
    began = []

    def energy():
        began.append(len(gpu.log))
        return gpu.host * WATTS

    monkeypatch.setattr("fusebench.timing.state.energy_j", energy)
    found = gpu.measure(lambda _: gpu.launch("k", seconds), Plan(time_s=time_s))
    taken = gpu.log[slice(*began)]
    assert [len(run) for run in re.findall("[012]+", taken)] == runs
    assert all("0120120120".startswith(run) for run in re.findall("[012]+", taken))
    assert len(found.host) == sum(runs)


def test_the_host_s_time_is_without_waiting_and_of_200_calls(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    found = gpu.measure(two_kernels(gpu), Plan())
    assert found.host == pytest.approx([2 * LAUNCH_S] * 200) and found.host_median == pytest.approx(2 * LAUNCH_S)
    assert found.clocks.host == pytest.approx(2 * LAUNCH_S)


def test_energy_is_the_board_s_of_a_call(monkeypatch):
    """500 W for calls of 1 ms, ten of them launched and waited for at a time."""
    gpu = SimulatedGpu(monkeypatch)
    found = gpu.measure(lambda _: gpu.launch("k", 1e-3), Plan())
    assert found.energy_j == pytest.approx(WATTS * (1e-3 + (LAUNCH_S + 2 * WAIT_S) / 10), rel=1e-3)


@pytest.mark.parametrize(
    ("seconds", "time_s", "known"),
    [(1e-4, 0.2, False), (1e-4, 0.201, True), (9.05e-3, 0.2, False), (9.1e-3, 0.2, True)],
)
def test_energy_is_taken_over_a_tenth_of_a_second_at_least(monkeypatch, seconds, time_s, known):
    """So long only where the plan has more than twice that; or where eleven calls last so long."""
    gpu = SimulatedGpu(monkeypatch)
    found = gpu.measure(lambda _: gpu.launch("k", seconds), Plan(time_s=time_s))
    assert (found.energy_j is not None) is known


def test_a_card_that_counts_no_energy_is_not_asked_for_long(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    asked = []
    monkeypatch.setattr("fusebench.timing.state.energy_j", lambda: asked.append(gpu.host))
    assert gpu.measure(lambda _: gpu.launch("k", 1e-4), Plan(time_s=0.4)).energy_j is None
    assert asked[1] - asked[0] == pytest.approx(0.05, rel=0.1)


FINE, SLOW = State(sm_mhz=1980), State(sm_mhz=345, slowdown="thermal slowdown")


@pytest.mark.parametrize("readings", [(SLOW, FINE), (FINE, SLOW)], ids=["before", "after"])
@pytest.mark.parametrize("regime", ["queued", "isolated", "sustained"])
def test_of_a_chunk_that_was_slowed_down_nothing_is_kept(monkeypatch, regime, readings):
    """The second one, whose calls take twice as long: no sample, check, profile or reading of it. The others stay."""
    gpu = SimulatedGpu(monkeypatch, states=[FINE, FINE, *readings])

    def call(_):
        gpu.launch("k", 400e-6 if gpu.log.count("s") == 3 else 200e-6)

    found = gpu.samples(call, Plan(0.1, regime=regime, target=0, calls=3 if regime == "sustained" else 60))
    rows = {"queued": 20, "isolated": 20, "sustained": 1}[regime]
    assert len(found.time) == 3 * rows and found.discarded == rows
    assert max(found.time) < 250e-6 and max(c.span / found.run for c in found.check) < 250e-6
    assert len(found.busy) == {"queued": 60, "isolated": 6, "sustained": 3}[regime]
    assert len(found.check) == {"queued": 6, "isolated": 6, "sustained": 3}[regime]
    assert len(found.profiles) == 3 and len(found.states) == 6 and SLOW not in found.states
    assert gpu.log.count("z") == 1 and "sz" in gpu.log and found.summary().discarded == rows


@pytest.mark.parametrize(("chunks", "passes"), [(5, True), (6, False)])
def test_a_gpu_that_stays_slowed_down_is_given_up_after_five_tries(monkeypatch, chunks, passes):
    gpu = SimulatedGpu(monkeypatch, states=[SLOW] * 2 * chunks)
    if passes:
        assert gpu.measure(two_kernels(gpu), Plan(0.1)).discarded == 100
    else:
        with pytest.raises(RuntimeError, match=r"stays slowed down \(thermal slowdown\): 120 samples were discarded"):
            gpu.measure(two_kernels(gpu), Plan(0.1))
    assert gpu.log.count("z") == 5


def test_after_a_rest_the_time_begins_anew(monkeypatch):
    gpu = SimulatedGpu(monkeypatch, states=[SLOW])
    gpu.rest_s = 10.0
    found = gpu.samples(two_kernels(gpu), Plan(0.1, target=0))
    undisturbed = SimulatedGpu(monkeypatch)
    assert len(found.time) == len(undisturbed.samples(two_kernels(undisturbed), Plan(0.1, target=0)).time) > 100


def test_the_host_s_time_of_a_flush_is_taken_while_nothing_is_queued(monkeypatch):
    """Where the queue of a device is full, a flush takes until there is room."""
    now, queued = [0.0], [True]

    def flush():
        now[0] += 1.0 if queued[0] else 1e-5

    backend = SimpleNamespace(flush=flush, wait=lambda _: queued.__setitem__(0, False))
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    assert clock._flush_host(backend) == pytest.approx(1e-5)
