"""The arithmetic of timing: how records are split into calls, what busy time is, what stops the sampling."""

from __future__ import annotations

import math
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import fusebench
from fusebench import report
from fusebench.backends import numpy as plain
from fusebench.contract import Device
from fusebench.timing.cupti import Kernel, Marker, busy, split
from fusebench.timing.measure import measure
from fusebench.timing.plan import Plan
from fusebench.timing.samples import MIN_SAMPLES, Ring, Samples, enough, median_interval
from fusebench.workers.pool import Pool

CPU = Device("cpu", "test")
FLUSH = Marker("flush", 1.0)


def kernels_of(*spans, name="k"):
    return [Kernel(name, start, end) for start, end in spans]


def flushed(start):
    """Two flushes of a second each."""
    return kernels_of((start, start + 1), (start + 1, start + 2), name="flush")


def test_records_are_split_at_the_flushes():
    stream = flushed(0) + kernels_of((2, 3)) + flushed(3) + kernels_of((5, 6), (7, 8))
    assert [len(call.kernels) for call in split(stream, FLUSH, 2, 2)] == [1, 2]


def test_a_short_kernel_of_the_flush_s_name_belongs_to_the_call():
    stream = flushed(0) + kernels_of((2, 2.1), name="flush") + kernels_of((2.2, 3))
    assert [len(call.kernels) for call in split(stream, FLUSH, 2, 1)] == [2]


@pytest.mark.parametrize(
    ("stream", "calls", "message"),
    [
        (flushed(0), 1, "1 of them without a kernel"),
        (flushed(0) + kernels_of((2, 3)), 2, "recorded 1 calls"),
        (flushed(0)[:1] + kernels_of((1, 2)) + flushed(2)[:1], 1, "out of order"),
        (kernels_of((0, 1)), 1, "out of order"),
    ],
)
def test_records_that_do_not_add_up_fail(stream, calls, message):
    with pytest.raises(RuntimeError, match=message):
        split(stream, FLUSH, 2, calls)


def test_busy_time_is_the_union_of_the_intervals():
    assert busy(kernels_of((0, 2), (1, 3), (5, 6), (5.2, 5.8))) == 4
    assert busy(kernels_of((5, 6), (0, 2))) == 3


def test_the_wall_clock_finds_a_sleep():
    samples = measure(plain, lambda: time.sleep(0.002), [[]], CPU, Plan(0.05))
    assert samples.timer == "wall" and len(samples.time) >= MIN_SAMPLES and min(samples.time) >= 0.002


def test_slow_calls_end_with_three_samples():
    assert len(measure(plain, lambda: time.sleep(0.02), [[]], CPU, Plan(0.01)).time) == 3


def test_every_input_set_of_the_ring_is_used():
    seen = []
    measure(plain, seen.append, [[1], [2], [3]], CPU, Plan(0.001))
    assert {*seen} == {1, 2, 3} and seen[-4:-1] in ([1, 2, 3], [2, 3, 1], [3, 1, 2])


def test_sustained_calls_are_counted_together():
    calls = []
    samples = measure(plain, calls.append, [[1]], CPU, Plan(0.05, regime="sustained", calls=6))
    assert samples.plan.regime == "sustained" and len(calls) > 20 * len(samples.time)


def test_sustained_samples_are_of_runs_of_one_length(monkeypatch):
    """Calls of 6 ms that take 4 ms after a while, as where a disturbance ends: not the slow ones alone are samples."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr("time.perf_counter_ns", lambda: round(now * 1e9))

    def call(_):
        nonlocal now
        now += 0.006 if now < 0.1 else 0.004

    samples = measure(plain, call, [[1]], CPU, Plan(0.2, regime="sustained", target=0))
    assert samples.run == 2 and {round(t, 6) for t in samples.time} == {0.004}


def test_sustained_calls_copy_no_more_inputs_than_there_is_room_for():
    class Array:
        nbytes = 2**30

    ring = Ring([[Array()]], frozenset([0]), lambda array: array)
    samples = measure(plain, lambda _: None, ring, CPU, Plan(0.01, regime="sustained", calls=6))
    assert samples.run == samples.summary()["run"] == 2


def test_the_interval_of_the_median_holds_it_as_often_as_it_says():
    """Order statistics need no distribution: a skewed one here, whose median is log 2."""
    draws = np.random.default_rng(0).exponential(size=(2000, 21))
    low, high = zip(*map(median_interval, draws), strict=True)
    held = np.mean((np.asarray(low) <= np.log(2)) & (np.asarray(high) >= np.log(2)))
    assert 0.94 <= held <= 0.995
    assert median_interval([1.0] * 5) is None and median_interval([1, 2, 3, 4, 5, 6]) == (1, 6)


@pytest.mark.parametrize(("spread", "target", "few"), [(0.001, 0.01, True), (0.2, 0.01, False), (0.001, 0.0, False)])
def test_sampling_ends_when_the_median_is_known(spread, target, few):
    rng = np.random.default_rng(0)
    samples = Samples("wall", Plan(target=target), time=(1 + spread * rng.standard_normal(20)).tolist())
    assert enough(samples, time.perf_counter() + 60) is few
    assert enough(samples, time.perf_counter() - 1), "the time is over"
    assert samples.summary()["target_missed"] is (spread > 0.1)


def test_to_stop_when_the_median_is_known_leaves_it_known():
    """Noise of 3 % needs some 80 samples for 1 %. To look after each of them would find 8 % of the intervals wrong."""
    rng, missed, count = np.random.default_rng(0), 0, 1000
    for _ in range(count):
        samples = Samples("wall", Plan())
        while not enough(samples, math.inf):
            samples.time.append(1 + 0.03 * rng.standard_normal())
        low, high = median_interval(samples.time) or (0, 0)
        missed += not low <= 1 <= high
    assert missed <= 0.065 * count


@pytest.mark.parametrize(
    ("device", "plan", "message"),
    [
        ("cpu", Plan(regime="queued"), "no stream to queue in"),
        ("cuda", Plan(regime="sustained", cache="cold"), "no room for a flush"),
    ],
)
def test_a_regime_that_is_none_is_refused(device, plan, message):
    with pytest.raises(ValueError, match=message):
        plan.on(device)


def test_the_regime_follows_the_device():
    assert (Plan().on("cuda").regime, Plan().on("cuda").cache) == ("queued", "cold")
    assert (Plan().on("cpu").regime, Plan().on("cpu").cache) == ("isolated", "warm")
    assert Plan(regime="sustained").on("cuda").cache == "warm"


def test_measure_gives_a_record_for_any_callable():
    record = fusebench.measure(sum, range(1000), time_s=0.02, moved_bytes=8000)
    assert record["label"] == "sum" and record["status"] == "ok" and record["timing"]["median"] > 0
    assert record["gbps"] == pytest.approx(8000 / record["timing"]["median"] / 1e9)
    assert set(record) >= {"packages", "device", "git_commit", "peak_memory_bytes", "compile_s", "seed"}


def test_measure_knows_torch_and_jax():
    import jax.numpy as jnp
    import torch

    assert (
        fusebench.measure(torch.relu, torch.zeros(10, dtype=torch.bfloat16), time_s=0.01)["case"]["dtype"] == "bfloat16"
    )
    assert fusebench.measure(jnp.sin, jnp.zeros(10), time_s=0.01)["device"]["type"] in ("cpu", "cuda")
    with pytest.raises(ZeroDivisionError):
        fusebench.measure(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (17.44e-6, "17.4 µs"),
        (999.4e-6, "999 µs"),
        (999.7e-6, "1 ms"),
        (0.9996, "1 s"),
        (1234.5, "1234 s"),
        (2e-10, "0.2 ns"),
    ],
)
def test_a_time_is_written_with_three_digits(seconds, text):
    assert report.seconds(seconds) == text


def test_measure_leaves_jax_as_it_is():
    """A callable that makes arrays of its own computes in other dtypes with 64 bits."""
    import jax
    import jax.numpy as jnp

    before = jax.config.jax_enable_x64
    try:
        jax.config.update("jax_enable_x64", False)
        fusebench.measure(jnp.sin, jnp.zeros(10), time_s=0.01)
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", before)


def test_a_second_gpu_is_refused():
    """The flush and the wait would be the first one's: nothing would be cold, nor queued, nor waited for."""
    import torch

    from fusebench.backends import torch as backend

    with pytest.raises(ValueError, match="cuda:1: only the first visible GPU"):
        backend.device_of(SimpleNamespace(device=torch.device("cuda", 1)))


@pytest.mark.parametrize(
    "wrong",
    [{"regime": "isolate"}, {"cache": "hot"}, {"time_s": math.nan}, {"time_s": math.inf}, {"time_s": 0}, {"target": -1}, {"target": 5}],
)  # fmt: skip
def test_measure_refuses_what_bench_refuses(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        fusebench.measure(lambda: pytest.fail("called"), **wrong)


def test_all_frameworks_get_the_same_threads(roots, tmp_path):
    with Pool("cpu", roots, tmp_path, threads=1) as pool:
        for backend in ("torch", "jax"):
            pool.start(backend, sys.executable)
        assert [pool.get(b, sys.executable).hello["device"]["threads"] for b in ("torch", "jax")] == [1, 1]
