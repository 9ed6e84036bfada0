"""Random numbers that all cores draw: normal, each block its own, and the same bits whatever the number of cores."""

from __future__ import annotations

import os
import threading

import ml_dtypes
import numpy as np
import pytest

from fusebench import drawing
from fusebench.drawing import BLOCK

STAYING = [1.079172, -0.9534843, 0.9464803, 1.091799, 1.778513, -1.352556]


def cores(monkeypatch, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(count)))


def drawn(count, monkeypatch, size, dtype=np.float32):
    cores(monkeypatch, count)
    rng = drawing.generator(3, 1)
    return [rng.standard_normal(size, dtype), rng.random(2), rng.standard_normal(5, dtype)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_number_of_cores_changes_no_bit(monkeypatch, dtype):
    size = (2, BLOCK + 7)
    one, five = drawn(1, monkeypatch, size, dtype), drawn(5, monkeypatch, size, dtype)
    assert one[0].shape == size and one[0].dtype == dtype
    assert [a.tobytes() for a in one] == [a.tobytes() for a in five]


def test_a_seed_has_numbers_that_stay(monkeypatch):
    """Whoever changes them raises SCHEMA in records/record.py: records of one seed are of the same inputs."""
    first, _, second = drawn(2, monkeypatch, BLOCK + 2)
    found = [*first[:2], *first[BLOCK:], *second[:2]]
    np.testing.assert_allclose(found, STAYING, rtol=1e-6)


def test_every_block_and_every_call_has_numbers_of_its_own(monkeypatch):
    first, _, second = drawn(2, monkeypatch, 3 * BLOCK)
    blocks = [*first.reshape(3, BLOCK)[:, :5], second]
    assert len(np.unique(np.concatenate(blocks))) == 20
    for a, b in ((0, 1), (0, 2), (1, 2)):
        share = np.corrcoef(first.reshape(3, BLOCK)[[a, b]])[0, 1]
        assert abs(share) < 4 / BLOCK**0.5
    other = drawing.generator(4, 1).standard_normal(5, np.float32)
    assert not np.isin(other, first[:5]).any()


def test_they_are_standard_normal(monkeypatch):
    x = drawn(2, monkeypatch, 2 * BLOCK)[0].astype(float)
    n = x.size
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - mean) < 4 * (variance / n) ** 0.5
    assert (np.abs(x) > 4).mean() == pytest.approx(6.33e-5, abs=4 * (6.33e-5 / n) ** 0.5)


def test_scalars_and_arrays_that_are_handed_in_are_numpy_s():
    ours, numpys = drawing.generator(1), np.random.Generator(np.random.PCG64([1]))
    assert ours.standard_normal() == numpys.standard_normal()
    assert (ours.standard_normal(out=np.empty(3)) == numpys.standard_normal(3)).all()
    assert ours.integers(100) == numpys.integers(100)
    assert ours.standard_normal((0, 3), np.float32).shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("shape", [(), (0,), (3, BLOCK // 2)])
def test_a_cast_is_numpy_s(monkeypatch, dtype, shape):
    cores(monkeypatch, 3)
    x = np.random.default_rng(0).standard_normal(shape)
    assert drawing.cast(x, dtype).tobytes() == x.astype(dtype).tobytes()
    assert drawing.cast(x.T, dtype).tobytes() == x.T.astype(dtype, "C").tobytes() and drawing.cast(x, float) is x


def test_work_for_several_threads_comes_back_in_order(monkeypatch):
    cores(monkeypatch, 2)
    both = threading.Barrier(2, timeout=10)

    def meet(n):
        both.wait()
        return n * n

    assert drawing.in_threads(meet, [3, 4]) == [9, 16]
    with pytest.raises(KeyError, match="7"):
        drawing.in_threads({1: 1}.__getitem__, [1, 7])


def test_a_thread_without_room_is_a_lack_of_memory(monkeypatch):
    def none(self):
        raise RuntimeError("can't start new thread")

    cores(monkeypatch, 2)
    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(MemoryError, match="can't start new thread"):
        drawing.in_threads(print, [1, 2])
