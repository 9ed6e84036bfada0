"""The two clocks, on a simulated GPU: a stream with a clock of its own, a host that launches, and faults planted in either."""

from __future__ import annotations

import itertools

import pytest

from fusebench.contract import Device
from fusebench.timing import cupti, state
from fusebench.timing import gpu as gpu_timing
from fusebench.timing.cupti import Kernel
from fusebench.timing.measure import measure
from fusebench.timing.plan import REGIMES, Plan
from fusebench.timing.samples import Ring
from fusebench.timing.state import State

GPU = Device("cuda", "simulated", (9, 0))
LAUNCH_S, WAIT_S, FLUSH_S = 5e-6, 8e-6, 100e-6


class Simulated:
    """A back end whose kernels take the time that they are told, in order, on a device that the host runs ahead of."""

    def __init__(self, monkeypatch, seen=lambda kernels: kernels, states=()):
        self.host, self.device, self.kernels, self.calls = 0.0, 0.0, [], 0
        self.states, self.flush_host_s, self.late_s = list(states), LAUNCH_S, itertools.repeat(0.0)
        self.profiling, self.profiler_s = False, 0.0  # a launch, while it records
        monkeypatch.setattr("time.perf_counter", lambda: self.host)
        monkeypatch.setattr("time.perf_counter_ns", lambda: round(self.host * 1e9))
        monkeypatch.setattr(cupti, "record", lambda work: seen(self.record(work)))
        monkeypatch.setattr(state, "read", lambda device: self.states.pop(0) if self.states else State(sm_mhz=1980))
        monkeypatch.setattr(state, "energy_j", lambda: self.host * 500)
        monkeypatch.setattr(state, "cool_down", lambda: None)

    def record(self, work):
        self.kernels.clear()
        self.profiling = True
        work()
        self.profiling = False
        return list(self.kernels)

    def launch(self, name, seconds, host_s=LAUNCH_S):
        self.host += host_s + (self.profiler_s if self.profiling else 0.0)
        start = max(self.host, self.device)
        self.device = start + seconds
        self.kernels.append(Kernel(name, start, self.device))

    def flush(self):
        self.launch("flush", FLUSH_S, self.flush_host_s)

    def wait(self, outputs):
        self.host = max(self.host, self.device) + WAIT_S + next(self.late_s)

    def copy(self, array):
        self.launch("copy", 1e-6)
        return array

    def measure(self, call, plan, ring=((0,), (1,), (2,))):
        def counted(*arguments):
            self.calls += 1
            return call(*arguments)

        return measure(self, counted, ring, GPU, plan).summary()


def two_kernels(gpu, seconds=200e-6, host_s=LAUNCH_S):
    def call(_):
        gpu.launch("first", seconds / 2, host_s)
        gpu.launch("second", seconds / 2, host_s)

    return call


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(), 200e-6),
        (Plan(cache="warm"), 200e-6),
        (Plan(regime="isolated"), LAUNCH_S + 200e-6 + WAIT_S),
        (Plan(regime="isolated", cache="warm"), LAUNCH_S + 200e-6 + WAIT_S),
        (Plan(regime="sustained"), 200e-6),
    ],
)
def test_each_regime_measures_what_it_says(monkeypatch, plan, expected):
    gpu = Simulated(monkeypatch)
    found = gpu.measure(two_kernels(gpu), plan)
    assert found["median"] == pytest.approx(expected, rel=1e-3)
    assert (found["launches"], found["kernels"]) == (2, ["first", "second"])
    assert found["clocks"]["says"] == "agrees" and found["state"] == {"sm_mhz": [1980, 1980]}
    assert found["energy_j"] > 0 and not found["target_missed"]


def test_isolated_calls_are_timed_without_the_profiler(monkeypatch):
    """Here it costs 20 µs a launch."""
    gpu = Simulated(monkeypatch)
    gpu.profiler_s = 20e-6
    found = gpu.measure(lambda _: gpu.launch("k", 400e-6), Plan(regime="isolated"))
    assert found["median"] == pytest.approx(LAUNCH_S + 400e-6 + WAIT_S, rel=1e-3)
    assert found["clocks"]["wall"] > found["median"] + 15e-6, "the checks are profiled"


def test_launches_do_not_enter_a_queued_time_but_a_sustained_one(monkeypatch):
    """The host takes 50 µs for each kernel of 10."""
    gpu = Simulated(monkeypatch)
    queued = gpu.measure(two_kernels(gpu, 20e-6, 50e-6), Plan())
    assert queued["median"] == pytest.approx(20e-6) and queued["clocks"]["says"] == "n/a"
    sustained = Simulated(monkeypatch)
    assert sustained.measure(two_kernels(sustained, 20e-6, 50e-6), Plan(regime="sustained"))["median"] == pytest.approx(
        100e-6, rel=0.05
    )


@pytest.mark.parametrize(("seconds", "expected"), [(2e-6, LAUNCH_S), (20e-6, 20e-6), (200e-6, 200e-6)])
def test_the_profiler_does_not_enter_a_sustained_time(monkeypatch, seconds, expected):
    """Here it costs 20 µs a launch: more than the first two kernels take, of which the second hides a launch without it."""
    gpu = Simulated(monkeypatch)
    gpu.profiler_s = 20e-6
    found = gpu.measure(lambda _: gpu.launch("k", seconds), Plan(regime="sustained"))
    assert found["median"] == pytest.approx(expected, rel=0.01)
    assert found["timer"] == ("cupti" if seconds > 100e-6 else "wall")


def test_launches_of_flushes_do_not_use_up_what_the_flushes_are_for(monkeypatch):
    """A flush takes the host more than half as long as the device: six of them are launched as the call should be."""
    gpu = Simulated(monkeypatch)
    gpu.flush_host_s = 60e-6
    assert gpu.measure(two_kernels(gpu, 20e-6, 200e-6), Plan())["median"] == pytest.approx(20e-6)


def test_warm_calls_of_copied_inputs_are_found_behind_their_twins(monkeypatch):
    gpu = Simulated(monkeypatch)

    class Array:
        nbytes = 1000

    ring = Ring([[Array()], [Array()]], frozenset([0]), gpu.copy)
    assert gpu.measure(two_kernels(gpu), Plan(cache="warm"), ring)["kernels"] == ["first", "second"]


@pytest.mark.parametrize("plan", [Plan(), Plan(cache="warm"), Plan(regime="isolated"), Plan(regime="sustained")])
def test_a_call_that_takes_ten_budgets_is_made_a_few_times(monkeypatch, plan):
    """One to warm up, one for the host, three samples with a check, or a twin, or both, each; and one to count launches."""
    gpu = Simulated(monkeypatch)
    assert len(gpu.measure(two_kernels(gpu, 5.0), plan)["samples"]) == 3
    assert gpu.calls <= 2 + 1 + 3 * 4


def test_sustained_calls_last_20_ms_however_long_the_copies_of_their_inputs_take(monkeypatch):
    gpu = Simulated(monkeypatch)

    class Array:
        nbytes = 1000

    def copy(array):
        gpu.launch("copy", 1e-3)
        return array

    samples = measure(
        gpu, two_kernels(gpu), Ring([[Array()], [Array()]], frozenset([0]), copy), GPU, Plan(regime="sustained")
    )
    assert all(check.wall > 0.95 * gpu_timing.SUSTAINED_S for check in samples.check)


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
    gpu = Simulated(monkeypatch, fault)
    clocks = gpu.measure(two_kernels(gpu, 2e-3), Plan(regime=regime))["clocks"]
    assert clocks["says"] == "contradicts" and reason in clocks["reason"]


@pytest.mark.parametrize(("often", "says"), [(5, "contradicts"), (1, "n/a")])
def test_a_late_host_hides_no_missing_kernel_unless_it_is_late_every_time(monkeypatch, often, says):
    """Each `often`-th wait ends 10 ms late: a check whose flushes are waited for so long tells nothing of a call of 2 ms."""
    gpu = Simulated(monkeypatch, lambda kernels: [k for k in kernels if k.name != "second"])
    gpu.late_s = itertools.cycle([0.0] * (often - 1) + [10e-3])

    def wobbling(_):
        gpu.launch("first", 1e-3 * (1 + 0.1 * (gpu.calls * 0.618 % 1)))
        gpu.launch("second", 1e-3)

    assert gpu.measure(wobbling, Plan())["clocks"]["says"] == says


def test_work_that_the_device_does_unseen_is_found(monkeypatch):
    """The call's second half runs where CUPTI does not look: the wall clock waits for it."""
    gpu = Simulated(monkeypatch)

    def call(_):
        gpu.launch("seen", 1e-3)
        gpu.device += 1e-3

    assert gpu.measure(call, Plan())["clocks"]["says"] == "contradicts"


def test_samples_of_a_slow_card_are_discarded(monkeypatch):
    gpu = Simulated(monkeypatch, states=[State(), State(slowdown="thermal slowdown")])
    found = gpu.measure(two_kernels(gpu), Plan())
    assert found["discarded"] == gpu_timing.CHUNK and len(found["samples"]) >= gpu_timing.CHUNK
    gpu = Simulated(monkeypatch, states=[State(slowdown="thermal slowdown")] * 100)
    with pytest.raises(RuntimeError, match="stays slowed down \\(thermal slowdown\\)"):
        gpu.measure(two_kernels(gpu), Plan())


def test_a_power_cap_is_kept_with_the_times(monkeypatch):
    gpu = Simulated(
        monkeypatch, states=[State(power_capped=False, power_w=300.0), State(power_capped=True, power_w=700.0)]
    )
    assert gpu.measure(two_kernels(gpu), Plan())["state"] == {"power_w": [300.0, 700.0], "power_capped": True}


def test_a_wobbling_call_takes_more_samples_than_a_steady_one(monkeypatch):
    counts = []
    for wobble in (0.0, 1.0):
        gpu = Simulated(monkeypatch)

        def call(_, gpu=gpu, wobble=wobble):
            gpu.launch("k", 200e-6 * (1 + wobble * (gpu.calls * 0.618 % 1)))

        counts.append(len(gpu.measure(call, Plan())["samples"]))
    assert counts[0] < counts[1]
