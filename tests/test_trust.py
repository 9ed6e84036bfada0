"""What guards a result against its own implementation: files of the run, answers that nobody asked for, the parent's clock."""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from samples import Worker, timed, timing
from simulated import SimulatedGpu, two_kernels
from test_run import Pool, done

from fusebench.backends import persisting
from fusebench.cell import rated
from fusebench.inputs import Stored
from fusebench.records.record import Record
from fusebench.report import show
from fusebench.timing import cupti
from fusebench.timing.plan import Plan
from fusebench.timing.summary import Clocks, TimedBatch
from fusebench.timing.yardstick import Rates
from fusebench.untouched import Untouched
from fusebench.workers import outputs, protocol, second_clock, state
from fusebench.workers.pool import Unasked
from fusebench.workers.protocol import MeasureRate, Refused, Release, TimeCell

AGAIN = Refused("failed", "LostRecords: CUPTI recorded 19 calls", again=True)


def once(*answers):
    """Those answers in turn, then what is right."""
    left = list(answers)
    return lambda request: left.pop(0) if left else {}


def test_a_profile_that_lost_records_is_tried_again_in_a_fresh_process(tmp_path):
    pool = Pool(Worker({TimeCell: once(AGAIN)}))
    (record,) = done(tmp_path, pool=pool)
    assert (record.status, record.retried) == ("ok", AGAIN.reason) and record.timing
    assert [kind for kind, *_ in pool.events].count("drop") == 1


def test_a_second_loss_is_the_status(tmp_path):
    pool = Pool(Worker({TimeCell: AGAIN}))
    (record,) = done(tmp_path, pool=pool)
    assert (record.status, record.reason, record.retried) == ("failed", AGAIN.reason, AGAIN.reason)
    assert [type(m) for m in pool.worker.asked].count(TimeCell) == 2


@pytest.mark.parametrize("twice", [False, True])
def test_clocks_that_contradict_each_other_are_looked_at_again_in_a_fresh_process(tmp_path, twice):
    clocks = Clocks("contradicts", 1.0, 1.0, 1.0, 0.0, 0.0, "the clocks contradict each other")
    doubted = {"timing": replace(timing([1e-3] * 6), clocks=clocks)}
    pool = Pool(Worker({TimeCell: doubted if twice else once(doubted)}))
    (record,) = done(tmp_path, pool=pool)
    assert record.retried == clocks.reason and [kind for kind, *_ in pool.events].count("drop") == 1
    assert (record.status, record.reason) == (("implausible", clocks.reason) if twice else ("ok", None))


def test_what_failed_otherwise_is_not_tried_again(tmp_path):
    pool = Pool(Worker({TimeCell: Refused("failed", "too hot")}))
    (record,) = done(tmp_path, pool=pool)
    assert (record.reason, record.retried) == ("too hot", None)
    assert [type(m) for m in pool.worker.asked].count(TimeCell) == 1


def test_a_yardstick_whose_profile_lost_records_is_measured_again(tmp_path):
    (record,) = done(tmp_path, pool=Pool(Worker({MeasureRate: once(AGAIN)})))
    assert record.rates.yardsticks.copy_gbps == 4.0


@pytest.mark.parametrize("lost", ["nothing", "order", "call"])
def test_lost_records_are_told_from_other_errors(monkeypatch, lost):
    kernels = {
        "nothing": [],
        "order": [cupti.Kernel("k", 0.0, 1.0)],
        "call": [cupti.Kernel("flush", 0.0, 1.0)],
    }[lost]
    with pytest.raises(cupti.LostRecords):
        cupti.split(kernels, cupti.Marker("flush", 1.0), 1, 1)


def test_replaced_functions_fail_a_cell_that_was_ok_and_take_its_time(tmp_path):
    released = protocol.Released(0, ("torch threads 2 → 1",), ("time.perf_counter", "torch.equal"))
    pool = Pool(Worker({Release: released}))
    (record,) = done(tmp_path, pool=pool)
    assert record.status == "failed" and record.timing is None and record.rates is None
    assert record.reason == "it replaced time.perf_counter, torch.equal, which results and clocks depend on"
    assert record.changed == ("torch threads 2 → 1", "time.perf_counter replaced", "torch.equal replaced")
    assert pool.events[-1][0] == "drop"


def test_a_wrong_cell_stays_wrong_whatever_it_replaced(tmp_path):
    worker = Worker(
        {TimeCell: Refused("wrong", "a timed call changed"), Release: protocol.Released(0, (), ("torch.equal",))}
    )
    (record,) = done(tmp_path, pool=Pool(worker))
    assert record.status == "wrong" and record.changed == ("torch.equal replaced",)


def test_an_answer_that_nobody_asked_for_fails_a_cell_when_it_is_let_go(tmp_path):
    pool = Pool(Worker({Release: Unasked()}))
    (record,) = done(tmp_path, pool=pool)
    assert record.status == "failed" and "another answer than it was asked for" in record.reason
    assert record.timing is None and pool.events[-1][0] == "drop"


def test_functions_are_compared_by_themselves_and_by_their_code(monkeypatch):
    def other(*_):
        return None

    seen = state.Names()
    seen.look()
    monkeypatch.setattr(outputs.overlap, "__code__", other.__code__)
    assert seen.replaced() == ("fusebench.workers.outputs.overlap",)
    monkeypatch.setattr(outputs, "spans", other)
    assert set(seen.replaced()) == {"fusebench.workers.outputs.overlap", "fusebench.workers.outputs.spans"}
    monkeypatch.undo()
    assert seen.replaced() == ()


def test_the_harness_s_own_functions_are_among_those_that_are_compared():
    found = state.Names()
    found.look()
    names = {f"{owner}.{name}" for owner, (_, held) in found.held.items() for name in held}
    assert {"time.perf_counter_ns", "builtins.min", "fusebench.timing.cpu.time", "fusebench.workers.outputs.fault",
            "fusebench.timing.samples.Ring.__getitem__"} <= names  # fmt: skip
    assert found.replaced() == ()


# Files


@pytest.mark.parametrize("how", ["content", "time set back", "another file", "gone"])
def test_a_file_that_somebody_else_changed_is_named(tmp_path, how):
    file, other = tmp_path / "input0.npy", tmp_path / "input1.npy"
    for one in (file, other):
        one.write_bytes(b"1234")
    untouched = Untouched()
    untouched.note(file, other, tmp_path / "none")
    assert untouched.changed() == []
    times = file.stat()
    if how == "another file":
        other.rename(file)
        other.write_bytes(b"1234")
        assert untouched.changed() == ["input0.npy", "input1.npy"]
        return
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(b"4321")
    if how == "time set back":
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert untouched.changed() == ["input0.npy"]
    untouched.note(file)
    assert untouched.changed() == []


# The parent's clock


class Slow:
    """A worker in a process of its own, whose calls take that many seconds each by the parent's clock."""

    def __init__(self, clock, seconds, most=10**9):
        self.clock, self.seconds, self.most, self.asked = clock, list(seconds), most, []
        self.process, self.batches = SimpleNamespace(pid=0), 0

    def get(self, request, expected, timeout_s):
        if isinstance(request, protocol.MakeReady):
            self.asked.append(request.calls)
            assert (request.files, request.folder) == ((Stored("unseen0.npy", "float32"),), "folder")
            self.calls = min(request.calls, self.most)
            self.clock[0] += 0.01
            return protocol.Ready(self.calls)
        self.batches += 1
        self.clock[0] += self.calls * (self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0])
        return protocol.Ran()


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(second_clock, "_waited_s", lambda process: 0.0)
    monkeypatch.setattr(second_clock, "_last_task", lambda: 7)
    return now


def watch(worker, measured):
    return second_clock.watch(worker, measured, [Stored("unseen0.npy", "float32")], "folder", 5.0)


@pytest.mark.parametrize(("median", "calls"), [(1e-3, 4), (3e-3, 2), (1.0, 1), (1e-9, 1024)])
def test_a_batch_is_four_milliseconds_of_calls(clock, median, calls):
    worker = Slow(clock, [median])
    found = watch(worker, timing([median] * 6))
    assert worker.asked == [calls] and found.calls == calls and not found.contradicts
    assert found.seconds == pytest.approx(calls * median) and found.allowed == pytest.approx(5 * calls * median + 2e-3)


def test_the_batch_that_says_least_counts(clock):
    worker = Slow(clock, [9e-3, 7e-3, 8e-3, 8.5e-3])
    found = watch(worker, timing([1e-3] * 6))
    assert found.contradicts and found.seconds == pytest.approx(4 * 7e-3) and worker.batches == 20
    slower = Slow(clock, [0.3])
    assert watch(slower, timing([1e-3] * 6)).contradicts and slower.batches == 3, "a second is enough"
    assert not watch(Slow(clock, [9e-3, 9e-3, 1e-3]), timing([1e-3] * 6)).contradicts


def test_fewer_calls_than_asked_for_count_as_what_they_are(clock):
    found = watch(Slow(clock, [1e-4], most=7), timing([1e-4] * 6))
    assert found.calls == 7 and found.seconds == pytest.approx(7e-4)


@pytest.mark.parametrize(("waited", "says"), [(0.24, True), (0.26, False)])
def test_a_batch_that_waited_for_a_core_says_nothing(clock, monkeypatch, waited, says):
    monkeypatch.setattr(second_clock, "_waited_s", lambda process: clock[0] * waited)
    found = watch(Slow(clock, [9e-3]), timing([1e-3] * 6))
    assert found.contradicts if says else found is None
    slow = Slow(clock, [0.3])
    assert bool(watch(slow, timing([1e-3] * 6))) == says and slow.batches == (3 if says else 1)


@pytest.mark.parametrize(("threads", "says"), [(3, True), (4, False)])
def test_a_batch_of_calls_that_start_threads_says_nothing(clock, monkeypatch, threads, says):
    """Four calls: what a thread waited for a core is not known once it has ended."""
    numbers = itertools.cycle([100, 100 + threads])
    monkeypatch.setattr(second_clock, "_last_task", lambda: next(numbers))
    found = watch(Slow(clock, [9e-3]), timing([1e-3] * 6))
    assert found.contradicts if says else found is None


def test_the_kernel_counts_threads():
    before = second_clock._last_task()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert second_clock._last_task() != before or not before


def test_within_this_process_there_is_no_other_clock():
    assert not second_clock.reaches(object())


def test_what_waits_for_a_core_is_read_from_the_kernel_or_nothing():
    assert second_clock._waited_s(os.getpid()) >= 0 and second_clock._waited_s(2**22 + 1) >= 0


def test_the_kernel_counts_waiting_in_ns_behind_the_time_that_threads_ran(tmp_path, monkeypatch):
    """Of this thread, and of those of the worker that live."""
    monkeypatch.setattr(second_clock, "Path", lambda path: Path(path.replace("/proc", str(tmp_path))))
    assert (second_clock._waited_s(7), second_clock._last_task()) == (0, 0), "a kernel that does not count"
    counts = {
        "thread-self": "9000000000 500000000 3",
        "7/task/7": "8000000000 1250000000 2",
        "7/task/8": "1 250000000 1",
        "7/task/9": "",
    }
    for place, text in counts.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "schedstat").write_text(text)
    (tmp_path / "loadavg").write_text("0.10 0.20 0.30 2/345 6789\n")
    assert (second_clock._waited_s(7), second_clock._last_task()) == (2.0, 6789)


def test_a_median_that_the_parent_s_clock_contradicts_is_implausible():
    fine = timed("flax")
    assert fine.status == "ok"

    def with_batch(seconds):
        return rated(replace(fine, timing=replace(fine.timing, batch=TimedBatch(40, seconds, 0.01))), None)

    assert with_batch(0.01).status == "ok"
    record = with_batch(0.0101)
    assert record.status == "implausible"
    assert record.reason == "40 calls on fresh inputs took 10.1 ms by the parent's clock; by the median they take 4"


# What a table says


def shown(capsys, *records: Record) -> str:
    show(records, timed=True)
    return capsys.readouterr().out


def test_a_time_far_beyond_the_yardstick_is_marked(capsys):
    """Best is the launch, here 0.1 ms: ten times as much, and half a millisecond more than it."""
    rates = Rates(1e6, 1e6, 1e-4, {})
    slow, near = (timed(name, times=[t] * 6, rates=rates) for name, t in (("flax", 1.6e-2), ("triton", 9e-4)))
    said = shown(capsys, slow, near)
    assert "far beyond the best time by the yardsticks, slow or measured wrongly: flax 160 ×\n" in said
    assert "far beyond" not in shown(capsys, near)
    tiny = timed("flax", times=[5e-5] * 6, rates=Rates(1e6, 1e6, 1e-6, {}))
    assert "far beyond" not in shown(capsys, tiny), "50 times a microsecond is what a framework's call costs"


def test_a_retried_cell_says_so(capsys):
    said = shown(capsys, replace(timed("flax"), retried="CUPTI recorded 19 calls"))
    assert "tried again in a fresh process  flax: CUPTI recorded 19 calls\n" in said


# Lines of L2 that persist


class Driver:
    """Stands in for cuda-bindings: a card of that compute capability whose limit a program may have raised."""

    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75)
    CUlimit = SimpleNamespace(CU_LIMIT_PERSISTING_L2_CACHE_SIZE=6)

    def __init__(self, major=9, limit=0, error=0, lost=0):
        self.major, self.limit, self.error, self.lost, self.done = major, limit, error, lost, []

    def cuInit(self, flags):
        return (self.error,)

    def cuDeviceGet(self, number):
        return self.error, f"device {number}"

    def cuDeviceGetAttribute(self, attribute, device):
        assert (attribute, device) == (75, "device 0")
        return self.error, self.major

    def cuDevicePrimaryCtxRetain(self, device):
        return self.lost, "context"

    def cuCtxPushCurrent(self, context):
        self.done.append(f"push {context}")

    def cuCtxPopCurrent(self):
        self.done.append("pop")

    def cuCtxGetLimit(self, limit):
        return 0, self.limit

    def cuCtxSetLimit(self, limit, size):
        assert limit == 6
        self.limit = size
        self.done.append(f"limit {size}")

    def cuCtxResetPersistingL2Cache(self):
        self.done.append("reset")


@pytest.fixture
def card(monkeypatch):
    import cuda.bindings

    def with_driver(driver):
        monkeypatch.setattr(cuda.bindings, "driver", driver, raising=False)
        persisting._context.cache_clear()
        return driver

    yield with_driver
    persisting._context.cache_clear()


def test_persisting_lines_are_reset_and_a_raised_limit_is_noted(card):
    driver = card(Driver(limit=2**20))
    persisting.forbid()
    assert driver.done == ["push context", "limit 0", "reset", "pop"] and persisting.raised() == 0
    driver.done.clear()
    driver.limit = 2**23
    persisting.reset()
    assert driver.done == ["push context", "limit 0", "reset", "pop"] and driver.limit == 0
    driver.done.clear()
    persisting.reset()
    assert driver.done == ["push context", "reset", "pop"] and persisting.raised() == 2**23
    persisting.forbid()
    assert persisting.raised() == 0


@pytest.mark.parametrize(
    "driver", [Driver(major=7), Driver(error=100), Driver(lost=201)], ids=["7.5", "no driver", "no context"]
)
def test_where_lines_cannot_persist_nothing_is_done(card, driver):
    card(driver)
    persisting.forbid()
    assert persisting.raised() is None and driver.done == []


def test_without_cuda_bindings_a_line_says_what_is_left_out(card, monkeypatch, capsys):
    card(Driver())
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    persisting.forbid()
    assert persisting.raised() is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "persisting lines of L2 are not reset (pip install cuda-bindings)" in said


def test_a_card_s_limit_is_zero_before_each_run_of_flushes(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    gpu.samples(two_kernels(gpu), Plan(0.2, target=0, calls=40))
    runs = re.sub("f+", "f", gpu.log)
    assert len(gpu.forgotten) >= 44 and all(gpu.log[at] == "f" and gpu.log[at - 1] != "f" for at in gpu.forgotten), runs


def test_the_flush_is_looked_at_once_a_process(monkeypatch):
    gpu = SimulatedGpu(monkeypatch)
    for profiles in (1, 0):
        gpu.log = ""
        gpu.samples(two_kernels(gpu), Plan(0.02, target=0, calls=20))
        assert len(re.findall(r"\[f+w\]", gpu.log)) == profiles, gpu.log
