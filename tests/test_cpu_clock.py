"""Timing on the CPU, and the warm-up before it, on a simulated one whose calls may return before their work is done."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from simulated import CPU, Array, SimulatedCpu

from fusebench.backends import numpy as numpy_backend
from fusebench.timing import state
from fusebench.timing.measure import measure
from fusebench.timing.plan import Plan
from fusebench.timing.samples import DRAWN, Ring, Samples
from fusebench.timing.summary import StateRange

FLUSH_S = 1e-3
RING = Ring([[0], [1], [2]], frozenset(), lambda array: array)


@pytest.fixture
def cpu(monkeypatch):
    """Its last cache holds 100 bytes, and to overwrite an array takes FLUSH_S and leaves an f in the log."""
    simulated, zeros = SimulatedCpu(monkeypatch), np.zeros

    class Watched(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, out, **kwargs):
            simulated.log += "f"
            simulated.work(FLUSH_S)
            simulated.flushed_bytes = out[0].nbytes
            plain = [i.view(np.ndarray) if isinstance(i, Watched) else i for i in inputs]
            before = out[0].tobytes()
            getattr(ufunc, method)(*plain, out=tuple(o.view(np.ndarray) for o in out), **kwargs)
            assert all(a != b for a, b in zip(before, out[0].tobytes(), strict=True)), "all of it is written"
            return out[0]

    monkeypatch.setattr(state, "cache_bytes", lambda: 100)
    monkeypatch.setattr(np, "zeros", lambda *args, **kwargs: zeros(*args, **kwargs).view(Watched))
    return simulated


def timed(cpu):
    """What happened since the first reading of the state, which ends the warm-up."""
    return re.sub("w+", "w", cpu.log.split("s", 1)[1].replace("s", ""))


@pytest.mark.parametrize("plan", [Plan(0.02), Plan(0.02, cache="cold"), Plan(0.1, regime="sustained")], ids=str)
def test_a_call_takes_until_its_work_is_done_and_not_until_it_returns(cpu, plan):
    """10 µs and 90 more. Neither the flush nor the copies are its."""
    ring = Ring([[Array()], [Array()]], frozenset([0]), cpu.copy)
    found = cpu.samples(lambda _: cpu.work(10e-6, 90e-6), plan, ring)
    assert found.time == pytest.approx([100e-6] * len(found.time)) and len(found.time) >= 6
    assert found.timer == "wall"


def test_a_cpu_has_one_clock(cpu):
    found = cpu.measure(lambda _: cpu.work(10e-6), Plan(0.01))
    absent = ("clocks", "host_median", "busy_median", "launches", "energy_j")
    assert [getattr(found, name) for name in absent] == [None] * len(absent) and found.host == found.busy == ()


@pytest.mark.parametrize(("cache", "turn"), [("warm", "w{0}"), ("cold", "wf{0}")])
def test_each_call_is_waited_for_and_cold_caches_are_overwritten_before_it(cpu, cache, turn):
    """The three input sets in turn."""
    cpu.measure(lambda _: cpu.work(10e-6), Plan(0.1, cache=cache))
    assert timed(cpu) == "".join(turn.format(i % 3) for i in range(20)) + "w"
    assert getattr(cpu, "flushed_bytes", None) == (200 if cache == "cold" else None), "twice the cache"


def test_sustained_calls_are_waited_for_row_by_row(cpu):
    """The next row goes on with the input set that the last one ended before."""
    samples = cpu.samples(lambda _: cpu.work(1e-3, 0.5e-3), Plan(0.1, regime="sustained", calls=3))
    assert samples.run == 4 and timed(cpu) == "w0w01w0120w1201w2012w"
    assert (samples.arguments, samples.time) == ((2,), pytest.approx([(4 * 1e-3 + 4 * 0.5e-3) / 4] * 3))


@pytest.mark.parametrize(
    ("seconds", "run"), [(5e-3, 1), (4.999e-3, 2), (2.501e-3, 2), (10e-6, 512), (4.89e-6, 1024), (1e-6, 1024)]
)
def test_a_row_of_sustained_calls_lasts_5_ms_or_1024_calls(cpu, seconds, run):
    samples = cpu.samples(lambda _: cpu.work(seconds), Plan(0.01, regime="sustained", calls=6))
    assert samples.run == samples.summary().run == run
    assert samples.time == pytest.approx([seconds] * 6, rel=1e-3)


def test_sustained_samples_are_of_rows_of_one_length(cpu):
    """Calls of 6 ms that take 4 ms after a while, as where a disturbance ends: not the slow ones alone are samples."""
    samples = cpu.samples(lambda _: cpu.work(6e-3 if cpu.now < 0.1 else 4e-3), Plan(0.2, regime="sustained", target=0))
    assert samples.run == 2 and samples.time == pytest.approx([4e-3] * len(samples.time))


def test_sustained_calls_copy_no_more_inputs_than_there_is_room_for(cpu):
    """Of 4 GiB, inputs of warm-ups included that only warm calls on a GPU have."""
    ring = Ring([[Array(nbytes=2**30)]], frozenset([0]), cpu.copy)
    assert cpu.samples(lambda _: cpu.work(1e-3), Plan(0.01, regime="sustained", calls=6), ring).run == 2
    assert max(map(len, re.findall("c+", cpu.log))) == 2


@pytest.mark.parametrize("regime", ["isolated", "sustained"])
def test_calls_that_overwrite_their_inputs_get_fresh_ones(cpu, regime):
    original = Array(7)

    def call(array, weight):
        assert array.content == 7 and weight == "weight"
        array.content = 0
        cpu.work(1e-3)

    cpu.measure(call, Plan(0.01, regime=regime), Ring([[original, "weight"]], frozenset([0]), cpu.copy))
    assert original.content == 7


@pytest.mark.parametrize(
    ("regime", "samples", "last"),
    [("isolated", 8, -3), ("isolated", 9, -1), ("sustained", 3, -1), ("sustained", 4, -3)],
)
def test_the_output_kept_is_that_of_the_last_call_on_the_last_set(cpu, regime, samples, last):
    """Of sustained calls, here rows of two, that of the last row which ends with it."""
    outputs = []

    def call(place):
        cpu.work(2.6e-3)
        outputs.append((place, len(outputs)))
        return outputs[-1]

    found = cpu.samples(call, Plan(0.1, target=0, regime=regime, calls=samples))
    assert found.arguments == (2,) and found.output == outputs[last]


@pytest.mark.parametrize(("regime", "run"), [("isolated", 1), ("sustained", 2)])
def test_of_some_calls_that_are_drawn_the_output_is_taken_as_the_clock_stops(cpu, regime, run):
    """All outputs are in one buffer: of calls back to back the last one's is there."""
    buffer, calls = [0], []

    def call(place):
        calls.append(place)
        cpu.work(2.6e-3)
        buffer[0] = len(calls) - 1
        return buffer

    ring = replace(RING, taken=lambda arguments, output: (*arguments, *output))
    found = cpu.samples(call, Plan(0.1, target=0, regime=regime, calls=30), ring)
    assert found.run == run and len(found.drawn) == DRAWN + 1
    assert found.drawn[-1][2][1] == len(calls) - 1, "the very last one is taken whatever is drawn"
    for place, arguments, (set_, number) in found.drawn:
        assert place == set_ == arguments[0] == calls[number]
        assert regime == "isolated" or (number - len(calls)) % 2 == 1


def test_each_sample_is_as_likely_to_be_drawn_as_any_other():
    ring, counts = replace(RING, taken=lambda arguments, output: output), np.zeros(20)
    for _ in range(2000):
        samples = Samples("wall", Plan())
        for number in range(20):
            samples.time.append(1.0)
            samples.draw(ring, 0, (), number)
        counts[[taken for *_, taken in samples.drawn]] += 1
    assert counts.sum() == 2000 * DRAWN and np.abs(counts - 400).max() < 6 * 18


def test_without_a_ring_that_takes_outputs_none_is_drawn(cpu):
    assert cpu.samples(lambda _: cpu.work(1e-3), Plan(0.01), RING).drawn == []


@pytest.mark.parametrize(
    ("quiet", "spoilt", "threads", "share", "busy"),
    [
        (20, 0, 1, 0.0, False), (0, 20, 1, 1.0, True), (0, 20, 2, 1.0, True), (0, 20, 64, 1.0, True), (15, 5, 1, 0.25, False),
        (15, 5, 2, 0.25, False), (9, 11, 1, 0.55, True),
    ],
)  # fmt: skip
def test_a_busy_machine_is_known_by_the_time_that_threads_wait_for_a_core(cpu, quiet, spoilt, threads, share, busy):
    """Calls of 1 ms, of which some wait 16 ms for threads of theirs: all of them give a median that is steady and wrong."""
    calls = []

    def call(_):
        calls.append(cpu.queue(16e-3, threads) if len(calls) % 20 < spoilt else None)
        cpu.work(1e-3)

    found = cpu.measure(call, Plan(2.0, target=0, calls=20))
    assert found.waiting == pytest.approx(share, abs=0.07) and found.machine_busy == busy


def test_waiting_between_the_calls_is_not_theirs(cpu):
    """Inputs are copied there: as much of it counts as the calls have of the whole time."""

    def copy(array):
        cpu.queue(1e-3)
        return array.copy()

    found = cpu.measure(lambda _: cpu.work(1e-3), Plan(1.0, calls=20), Ring([[Array()]], frozenset([0]), copy))
    assert found.waiting == pytest.approx(0.5, abs=0.02) and not replace(found, waiting=0.49).machine_busy


def test_sustained_calls_wait_as_other_calls_do(cpu):
    def call(_):
        cpu.queue(1e-3)
        cpu.work(1e-3)

    assert cpu.measure(call, Plan(0.2, regime="sustained")).waiting == pytest.approx(0.5)


def test_where_the_kernel_does_not_count_what_threads_wait_nothing_is_said(cpu, monkeypatch):
    monkeypatch.setattr(state, "waited_s", lambda: None)
    found = cpu.measure(lambda _: cpu.work(1e-3), Plan(0.1))
    assert found.waiting is None and not found.machine_busy


def test_what_threads_of_this_process_wait_is_counted():
    """Two that compute on one core: each waits while the other one runs."""
    if (before := state.waited_s()) is None:
        pytest.skip("this kernel does not count it")
    ours, both, waited = os.sched_getaffinity(0), threading.Barrier(2), []

    def compute():
        os.sched_setaffinity(0, [min(ours)])
        both.wait()
        begin = time.thread_time()
        while time.thread_time() < begin + 0.02:
            sum(range(1000))
        waited.append(state.waited_s() - before)  # a thread that has ended is not counted any more

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(waited) > 0.0


@pytest.mark.parametrize(("seconds", "count"), [(10e-3, 10), (20e-3, 6), (94e-3, 6), (96e-3, 3)])
def test_sampling_ends_with_the_time_and_six_samples_or_three_slow_ones(cpu, seconds, count):
    """Of 95 ms, to which the warm-up adds nothing."""
    assert len(cpu.samples(lambda _: cpu.work(seconds), Plan(0.095, target=0)).time) == count


def test_the_state_is_read_before_each_twenty_samples(cpu):
    found = cpu.samples(lambda _: cpu.work(1e-3), Plan(1.0, target=0, calls=45))
    begin = found.states[0].load
    assert [s.load - begin for s in found.states] == pytest.approx([0, 20e-3, 40e-3])
    assert found.summary().state == StateRange(load=(begin, found.states[-1].load))


@pytest.mark.parametrize(("seconds", "calls"), [(1e-3, 25), (24e-3, 2), (1.0, 1)])
def test_a_quarter_of_the_time_is_warm_up(cpu, seconds, calls):
    """Of 98 ms, with one call at least; each is waited for, since a clock that begins with work in the queue is late."""
    cpu.samples(lambda _: cpu.work(seconds / 2, seconds / 2), Plan(0.098))
    assert cpu.log.split("s", 1)[0] == "".join(f"{i % 3}w" for i in range(calls))


def test_the_warm_up_ends_with_its_time(cpu):
    cpu.samples(lambda _: cpu.work(0.25), Plan(1.0))
    assert cpu.log.startswith("0ws")


def test_a_ring_may_be_a_plain_list(cpu):
    assert cpu.samples(lambda: cpu.work(1e-3), Plan(0.01), [()]).time[0] == pytest.approx(1e-3)


def test_the_clock_s_seconds_are_seconds():
    """The one test here by the real clock, which is held against itself: warm-up and readings take the rest."""
    begin = time.perf_counter()
    samples = measure(numpy_backend, lambda: time.sleep(0.002), [[]], CPU, Plan(0.03))
    took = time.perf_counter() - begin
    assert min(samples.time) >= 0.002 and took / 10 < sum(samples.time) < took
