"""CUPTI's records: how they become kernels, how they are split into calls, what busy time is."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fusebench.timing import cupti
from fusebench.timing.cupti import Call, Kernel, Marker, busy, marker, record, split

FLUSH = Marker("flush", 1.0)


def kernels_of(*spans, name="k"):
    return [Kernel(name, start, end) for start, end in spans]


def flushed(start):
    """Two flushes of a second each."""
    return kernels_of((start, start + 1), (start + 1, start + 2), name="flush")


@pytest.fixture
def profiler(monkeypatch):
    """Stands in for torch.profiler: what it saw, and whether it ran while `work` did."""

    class Profiler:
        seen, running, asked = (), False, None

        def __enter__(self):
            self.running = True
            return self

        def __exit__(self, *_):
            self.running = False

        def events(self):
            return self.seen

        def profile(self, activities):
            self.asked = activities
            return self

        def see(self, *events):
            self.seen = [
                SimpleNamespace(name=name, device_type=device, time_range=SimpleNamespace(start=start, end=end))
                for name, device, start, end in events
            ]

    stub = Profiler()
    modules = {
        "torch": SimpleNamespace(),
        "torch.autograd": SimpleNamespace(DeviceType=SimpleNamespace(CUDA="gpu", CPU="cpu")),
        "torch.profiler": SimpleNamespace(
            ProfilerActivity=SimpleNamespace(CUDA="cuda activity", CPU="cpu activity"), profile=stub.profile
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return stub


def test_records_are_the_device_s_in_seconds_and_in_order(profiler):
    """The profiler counts in microseconds, and also sees what the host does."""
    profiler.see(("late", "gpu", 3e6, 4.5e6), ("launch", "cpu", 0, 1), ("early", "gpu", 1.5, 2.0))
    ran = []
    assert record(lambda: ran.append(profiler.running)) == [Kernel("early", 1.5e-6, 2e-6), Kernel("late", 3.0, 4.5)]
    assert ran == [True] and not profiler.running and profiler.asked == ["cuda activity"]


def test_the_profiler_is_started_with_nothing_to_see(profiler):
    cupti.start()
    assert profiler.asked == ["cuda activity"] and not profiler.running


def test_a_profiler_that_does_not_start_is_not_the_start_s_to_report(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.profiler", None)
    cupti.start()


@pytest.mark.parametrize("seen", [None, [], [("launch", "cpu", 0, 1)]])
def test_a_profiler_that_records_no_kernel_fails(profiler, seen):
    profiler.seen = seen
    if seen:
        profiler.see(*seen)
    with pytest.raises(RuntimeError, match="CUPTI recorded no kernel"):
        record(lambda: None)


def test_the_marker_is_the_longest_kernel_of_a_flush_and_its_median(monkeypatch):
    """A flush may launch a small kernel too, and one of them be slow. The first of all, which makes its array, is not recorded."""
    log = []

    def record(work):
        log.append("record")
        work()
        small = kernels_of((0.0, 0.5), (10, 10.5), (20, 20.5), (30, 30.5), name="small")
        small += kernels_of((40, 40.5), name="small")
        return small + kernels_of((1, 5), (11, 13), (21, 23), (31, 33.5), name="flush")

    monkeypatch.setattr(cupti, "record", record)
    backend = SimpleNamespace(flush=lambda: log.append("flush"), wait=lambda outputs: log.append("wait"))
    assert marker(backend) == Marker("flush", 2.25)
    four = ["flush"] * 4 + ["wait"]
    assert log == [*four, "record", *four]


def test_records_are_split_at_the_flushes():
    first, second = kernels_of((2, 3)), kernels_of((5.5, 6), (7, 8))
    stream = flushed(0) + first + kernels_of((3, 4), (4.25, 5.25), name="flush") + second
    assert split(stream, FLUSH, 2, 2) == [Call(first, 2.0), Call(second, 2.25)]


def test_a_kernel_of_the_flush_s_name_of_less_than_half_its_time_belongs_to_the_call():
    """One that lasts longer is taken for a flush, and the records do not add up."""

    def stream(duration):
        first = [*flushed(0), *kernels_of((2, 2 + duration), name="flush"), *kernels_of((3, 4))]
        return [*first, *flushed(4), *kernels_of((6, 7))]

    for duration in (0.499, 0.5):
        assert [len(call.kernels) for call in split(stream(duration), FLUSH, 2, 2)] == [2, 1]
    with pytest.raises(RuntimeError, match="out of order"):
        split(stream(0.501), FLUSH, 2, 2)


def test_a_long_kernel_of_another_name_belongs_to_the_call():
    stream = flushed(0) + kernels_of((2, 9), name="other")
    assert split(stream, FLUSH, 2, 1)[0].kernels == stream[2:]


@pytest.mark.parametrize(
    ("stream", "calls", "message"),
    [
        (flushed(0), 1, "recorded 1 calls, 1 of them without a kernel; expected 1"),
        (flushed(0) + kernels_of((2, 3)) + flushed(3), 2, "recorded 2 calls, 1 of them without a kernel; expected 2"),
        (flushed(0) + kernels_of((2, 3)), 2, "recorded 1 calls, 0 of them without a kernel; expected 2"),
        (flushed(0) + kernels_of((2, 3)) + flushed(3) + kernels_of((5, 6)), 1, "recorded 2 calls"),
        (flushed(0)[:1] + kernels_of((1, 2)) + flushed(2)[:1], 1, "out of order: k stands among the flushes"),
        (flushed(0) + kernels_of((2, 3)) + flushed(3)[:1] + kernels_of((4, 5)), 1, "out of order"),
        (kernels_of((0, 1)), 1, "out of order"),
        ([], 1, "recorded 0 calls"),
    ],
)
def test_records_that_do_not_add_up_fail(stream, calls, message):
    with pytest.raises(RuntimeError, match=message):
        split(stream, FLUSH, 2, calls)


def test_a_span_reaches_from_the_first_start_to_the_last_end():
    assert Call(kernels_of((2, 9), (1, 3), (4, 5)), 0.0).span == 8


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        (((0, 2), (1, 3), (5, 6), (5.2, 5.8)), 4),
        (((5, 6), (0, 2)), 3),
        (((0, 10), (1, 2), (3, 4)), 10),
        (((-3, -1), (-2, 0)), 3),
        (((1, 2), (2, 3)), 2),
        ((), 0),
    ],
)
def test_busy_time_is_the_union_of_the_intervals(spans, seconds):
    assert busy(kernels_of(*spans)) == seconds
