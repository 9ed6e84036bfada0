"""`fusebench.measure` on callables of any kind, and what all frameworks share while they are timed."""

from __future__ import annotations

import math
import sys

import pytest

import fusebench
from fusebench import report
from fusebench.records.record import SCHEMA
from fusebench.workers.pool import Pool


def test_measure_gives_a_record_for_any_callable():
    record = fusebench.measure(sum, range(1000), time_s=0.02, moved_bytes=8000, backend="numpy")
    assert record.label == "sum" and record.status == "ok" and record.timing.median > 0
    assert record.rates.gbps == pytest.approx(8000 / record.timing.median / 1e9)
    assert "fusebench" in record.environment.packages and record.device.name and record.cell.seed == 0
    assert record.build.compile_s >= 0 and record.schema == SCHEMA


def test_measure_knows_torch_and_jax():
    import jax.numpy as jnp
    import torch

    assert fusebench.measure(torch.relu, torch.zeros(10, dtype=torch.bfloat16), time_s=0.01).case.dtype == "bfloat16"
    assert fusebench.measure(jnp.sin, jnp.zeros(10), time_s=0.01).device.type in ("cpu", "cuda")
    with pytest.raises(ZeroDivisionError):
        fusebench.measure(lambda: 1 / 0, backend="numpy")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (17.44e-6, "17.4 µs"),
        (999.4e-6, "999 µs"),
        (999.7e-6, "1 ms"),
        (0.9996, "1 s"),
        (0.9995, "1 s"),
        (999.25, "999 s"),
        (999.5, "1000 s"),
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


@pytest.mark.parametrize(
    "wrong",
    [{"regime": "isolate"}, {"cache": "hot"}, {"time_s": math.nan}, {"time_s": math.inf}, {"time_s": 0}, {"target": -1}, {"target": 5}],
)  # fmt: skip
def test_measure_refuses_what_bench_refuses(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        fusebench.measure(lambda: pytest.fail("called"), backend="numpy", **wrong)


def test_all_frameworks_get_the_same_threads(roots, tmp_path):
    with Pool("cpu", roots, tmp_path, threads=1) as pool:
        for backend in ("torch", "jax"):
            pool.start(backend, sys.executable)
        assert [pool.get(b, sys.executable).info.device.threads for b in ("torch", "jax")] == [1, 1]
