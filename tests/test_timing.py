"""The arithmetic of timing: how records are split into calls, what busy time is, what stops the sampling."""

from __future__ import annotations

import time

import pytest

import fusebench
from fusebench import timing, yardstick
from fusebench.backends import numpy as plain
from fusebench.contract import Device
from fusebench.cupti import Kernel, busy, split


def kernels_of(*spans, name="k"):
    return [Kernel(name, start, end) for start, end in spans]


def flushed(start):
    """Two flushes of a second each."""
    return kernels_of((start, start + 1), (start + 1, start + 2), name="flush")


def test_records_are_split_at_the_flushes():
    stream = flushed(0) + kernels_of((2, 3)) + flushed(3) + kernels_of((5, 6), (7, 8))
    assert [len(call) for call in split(stream, "flush", 1.0, 2, 2)] == [1, 2]


def test_a_short_kernel_of_the_flush_s_name_belongs_to_the_call():
    stream = flushed(0) + kernels_of((2, 2.1), name="flush") + kernels_of((2.2, 3))
    assert [len(call) for call in split(stream, "flush", 1.0, 2, 1)] == [2]


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
        split(stream, "flush", 1.0, 2, calls)


def test_busy_time_is_the_union_of_the_intervals():
    assert busy(kernels_of((0, 2), (1, 3), (5, 6), (5.2, 5.8))) == 4
    assert busy(kernels_of((5, 6), (0, 2))) == 3


def test_the_wall_clock_finds_a_sleep():
    samples = timing.measure(plain, lambda: time.sleep(0.002), [[]], Device("cpu", "test"), 0.05)
    assert samples.timer == "wall" and len(samples.span) >= timing.MIN_SAMPLES and min(samples.span) >= 0.002


def test_slow_calls_end_with_three_samples():
    assert len(timing.wall(plain, lambda: time.sleep(0.02), [[]], 0.01).span) == 3


def test_every_input_set_of_the_ring_is_used():
    seen = []
    timing.wall(plain, seen.append, [[1], [2], [3]], 0.001)
    assert seen[:4] == [1, 2, 3, 1]


def test_the_bound_is_what_the_datasheet_allows():
    card = {"name": "NVIDIA H200"}
    assert yardstick.bound(0, 4_800_000_000 + 50_000_000, "float32", "ieee", card) == pytest.approx(1e-3)
    assert yardstick.bound(989_500_000_000, 0, "bfloat16", "ieee", card) == pytest.approx(1e-3)
    assert yardstick.bound(1, 1, "float32", "ieee", {"name": "some CPU"}) is None


def test_a_share_of_the_yardstick_takes_the_tighter_limit():
    rates = {"copy_gbps": 100e-9, "matrix_tflops": 1000e-12}
    assert yardstick.share(1000, 10, 2.0, rates) == pytest.approx(0.5)
    assert yardstick.share(0, 100, 4.0, rates) == pytest.approx(0.25)


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
