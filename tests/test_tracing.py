"""What a worker records for `profile`, with a back end and a clock of the tests': warm-up, calls, memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from samples import Now, untimed

from fusebench.backends.events import KERNEL, OPERATOR, RANGE, Event, Held, Recording
from fusebench.profiling import cell as program
from fusebench.profiling import ncu, run, trace
from fusebench.settings import Settings
from fusebench.timing.cupti import Marker
from fusebench.tracing import calls, memory, syncs
from fusebench.tracing.calls import Traced, TracedCall, TracePlan


class Backend:
    """Says what it was asked for; to wait for an output takes `work_s`."""

    def __init__(self, now, work_s=0.0, events=(), held=()):
        self.now, self.work_s, self.said, self.events, self.held = now, work_s, [], events, held

    def wait(self, outputs):
        self.said.append(("wait", outputs))
        self.now.now += self.work_s if outputs == "output" else 0.0

    def flush(self):
        self.said.append("flush")

    def held_bytes(self):
        return None

    def record(self, work):
        class Mark:
            def __init__(mark, name):
                self.said.append(name)

            def __enter__(mark): ...

            def __exit__(mark, *_):
                self.said.append("end")

        work(Mark)
        return Recording(self.events, self.held, 0)


@pytest.fixture
def now(monkeypatch):
    made = Now()
    monkeypatch.setattr(calls, "time", SimpleNamespace(perf_counter=made))
    return made


def call_of(now, host_s, seen):
    def call(*arguments):
        seen.append(arguments)
        now.now += host_s
        return "output"

    return call


@pytest.mark.parametrize(
    ("host_s", "work_s", "count"), [(1e-6, 0.0, 20), (0.01, 0.05, 4), (0.001, 0.1, 2), (5.0, 0.0, 2)]
)
def test_a_call_is_warm_after_as_many_as_fit_into_a_fifth_of_a_second(now, host_s, work_s, count):
    seen = []
    found = calls._warm_up(Backend(now, work_s), call_of(now, host_s, seen), [("a",), ("b",), ("c",)])
    assert len(seen) == count == min(calls.WARM_CALLS, count) and seen[:3] == [("a",), ("b",), ("c",)][:count]
    assert found == pytest.approx(host_s), "without the wait for the device"


def event(name, begin, end, kind=OPERATOR):
    return Event(name, kind, begin, end)


def test_calls_are_traced_one_by_one_on_an_idle_device(now, monkeypatch):
    monkeypatch.setattr(syncs, "find", lambda *_: ())
    events = (event("it, call 1", 1.0, 2.0, RANGE), event("it, call 2", 3.0, 4.0, RANGE), event("before", 0.5, 1.5), event("mul", 1.0, 1.5), event("neg", 3.5, 4.5))  # fmt: skip
    backend, seen = (
        Backend(now, events=events, held=(Held(0.0, 100), Held(1.5, 400), Held(2.0, 150), Held(3.5, 900))),
        [],
    )
    found = calls.trace(backend, call_of(now, 1.0, seen), [("a",), ("b",)], "cpu", TracePlan("it", 2, False, ()), lambda: pytest.fail("the profiler saw its memory"))  # fmt: skip
    assert [(c.name, c.begin, c.end, [e.name for e in c.events]) for c in found.calls] == [("it, call 1", 1.0, 2.0, ["mul"]), ("it, call 2", 3.0, 4.0, ["neg"])]  # fmt: skip
    assert found.memory == (Held(0.0, 0), Held(0.5, 300), Held(1.0, 50)) and (found.peak_bytes, found.memory_of) == (300, "allocator")  # fmt: skip
    traced = backend.said[backend.said.index("it, call 1") - 2 :]
    assert traced == [
        ("wait", ("a",)), ("wait", None), "it, call 1", ("wait", "output"), "end",
        ("wait", ("b",)), ("wait", None), "it, call 2", ("wait", "output"), "end",
    ]  # fmt: skip


def test_flushes_are_not_of_a_call_and_short_work_of_their_name_is():
    """A flush may lose some of its time to the clock of the records, not half."""
    events = [event("fill", 1.0, 1.6, KERNEL), event("fill", 1.7, 1.9, KERNEL), event("mul", 1.9, 2.5, KERNEL)]
    call = calls._traced(event("it, call 1", 1.0, 2.0, RANGE), events, Marker("fill", 1.0))
    assert [(e.name, e.begin) for e in call.events] == [("fill", 1.7), ("mul", 1.9)]


@pytest.mark.parametrize(("told", "peak"), [(None, 700), (500, 700), (9000, 9000)])
def test_the_peak_is_what_was_seen_or_told_whichever_is_more(now, monkeypatch, told, peak):
    monkeypatch.setattr(syncs, "find", lambda *_: ())
    monkeypatch.setattr(memory, "watch", lambda *_: ((Held(0.0, 0), Held(0.1, 700)), "process"))
    ranges = (event("it, call 1", 1.0, 2.0, RANGE),)
    found = calls.trace(Backend(now, events=ranges), call_of(now, 1.0, []), [()], "cpu", TracePlan("it", 1, True, ()), lambda: lambda: told)  # fmt: skip
    assert (found.peak_bytes, found.memory_of) == (peak, "process")


def test_memory_is_watched_while_a_call_runs():
    device = SimpleNamespace(bytes=1000, looks=0)

    def held_bytes():
        device.looks += 1
        return device.bytes

    def holds(count):
        """Until it was looked at twice."""
        device.bytes, seen = count, device.looks
        while device.looks < seen + 2:
            time.sleep(1e-4)

    def call():
        holds(5000)
        holds(1200)

    waits = []
    backend = SimpleNamespace(held_bytes=held_bytes, wait=lambda outputs: waits.append((outputs, device.looks)))
    found, of = memory.watch(backend, call, ())
    assert waits[0] == ((), 1) and [outputs for outputs, _ in waits] == [(), None], "inputs are there before it looks"
    assert of == "device" and [h.bytes for h in found] == [0, 4000, 200]
    assert 0 == found[0].at < found[1].at < found[2].at


def test_the_counted_call_alone_is_between_start_and_stop(now, monkeypatch):
    done = []
    driver = SimpleNamespace(cuProfilerStart=lambda: done.append("start"), cuProfilerStop=lambda: done.append("stop"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    backend = Backend(now)
    calls.count(backend, lambda *arguments: done.append("call") or "output", [("a",)])
    assert done == [*["call"] * calls.WARM_CALLS, "start", "call", "stop"]
    assert backend.said[-2:] == [("wait", ("a",)), ("wait", "output")], (
        "its inputs are there before, its outputs behind"
    )


def test_where_there_is_no_ncu_no_cell_has_counters(monkeypatch):
    monkeypatch.setattr(ncu, "_places", lambda: ["no-such-ncu"])
    with pytest.raises(
        ncu.NoCounters, match="is neither on PATH nor in CUDA_HOME/bin: ncu=PATH says where it is"
    ) as none:
        ncu.find(None)
    assert none.value.everywhere
    with pytest.raises(ncu.NoCounters, match="is no ncu, or does not run: its --version is ") as none:
        ncu.find("true")
    assert none.value.everywhere


def test_the_newest_ncu_that_is_installed_comes_behind_the_toolkits(monkeypatch, tmp_path):
    for version in ("2024.1", "2025.3"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").touch()
    monkeypatch.setattr(ncu, "INSTALLED", tmp_path)
    monkeypatch.setenv("CUDA_HOME", "/opt/ours")
    places = ncu._places()
    assert places[:2] == ["ncu", "/opt/ours/bin/ncu"]
    assert places[-2:] == [str(tmp_path / "2025.3" / "ncu"), str(tmp_path / "2024.1" / "ncu")]


# What becomes of the calls in the sweep


@pytest.fixture
def swept(monkeypatch, tmp_path):
    """The profile of calls of so many seconds, two kernels each; `lost` says how often the profiler loses them first."""
    cell = untimed().cell

    def sweep(seconds, lost=0):
        traced = Traced(
            tuple(TracedCall(f"call {n}", 10 * n, 10 * n + 9, kernels_of(10 * n, s)) for n, s in enumerate(seconds))
        )
        trials = [
            SimpleNamespace(again=n < lost, ok=n >= lost, record=untimed(), worker_key=("torch", "python"))
            for n in range(lost + 1)
        ]
        dropped, waiting = [], list(trials)

        def built(this, pool, cell, shared, then):
            then(waiting[0])
            return waiting.pop(0)

        monkeypatch.setattr(run, "built", built)
        monkeypatch.setattr(run, "ask", lambda trial, message: traced if trial.ok else None)
        this = SimpleNamespace(settings=Settings("cuda"))
        made, _ = run._profile(
            run.Sweep(this, None, 3, False, None), SimpleNamespace(drop=lambda *key: dropped.append(key)), cell, None
        )
        return made, dropped

    return sweep


def kernels_of(begin, seconds):
    return (
        Event("tail", KERNEL, begin + seconds / 2, begin + seconds),
        Event("head", KERNEL, begin, begin + seconds / 2),
    )


@pytest.mark.parametrize(("seconds", "shown"), [((4, 1, 3), 2), ((4, 1, 3, 2), 3), ((5,), 0)])
def test_the_call_that_is_shown_is_the_median(swept, seconds, shown):
    made, dropped = swept(seconds)
    assert (
        made.shown == shown and made.span.span_s == seconds[shown] and [s.span_s for s in made.spans] == list(seconds)
    )
    assert made.launched == ("head", "tail") and {r.name for r in made.rows} == {"head", "tail"} and not dropped


def test_what_the_profiler_lost_is_recorded_again_by_a_fresh_worker(swept):
    made, dropped = swept((1,), lost=1)
    assert dropped == [("torch", "python")] and made.span.span_s == 1


def test_what_is_interpreted_is_skipped_and_starts_no_worker(monkeypatch):
    ended = []

    class Trial:
        interpreted = True
        implementation = SimpleNamespace(without_gpu="interpreted")

        def __init__(self, this, cell):
            self.end = lambda *words: ended.append(words)

        def recording_failures(self, pool):
            return contextlib.nullcontext()

        def can_run(self):
            return True

    monkeypatch.setattr(run, "Trial", Trial)
    pool = SimpleNamespace(get=lambda *_: pytest.fail("a worker was started"))
    run.built(None, pool, None, None, lambda trial: pytest.fail("it was traced"))
    assert ended == [("skipped", "interpreted on the CPU: its time is none of a GPU's")]


def test_lines_are_noted_within_it_alone():
    before = sys.gettrace()
    with syncs.Lines((str(Path(__file__).parent),)) as noted:
        sum([1, 2])
    assert sys.gettrace() is before
    last = noted.log[-1] if noted.log else (0, "", 0)
    assert noted.at(0) == ("", 0) and noted.at(last[0] + 1) == last[1:]


def test_the_program_under_ncu_ends_with_its_parent(monkeypatch):
    seen = []
    monkeypatch.setattr(program.below, "end_with", seen.append)
    with pytest.raises(FileNotFoundError):
        program.main("nosuch.json", ".", "123")
    assert seen == [123]


def test_events_that_follow_at_once_share_a_track():
    made = tuple(
        Event(name, KERNEL, begin, begin + 1.0, "stream 7") for name, begin in (("a", 0.0), ("b", 1.0), ("c", 2.5))
    )
    written = trace.events([("cell", Traced((TracedCall("call", 0.0, 4.0, made),)))])
    assert [e["args"]["name"] for e in written if e["name"] == "thread_name"] == ["calls", "stream 7"]


def test_a_cell_whose_calls_nobody_saw_is_not_in_the_file():
    seen = Traced((TracedCall("call", 1.0, 2.0, (event("mul", 1.0, 2.0),)),))
    written = trace.events([("none", Traced()), ("cell", seen)])
    assert [e["args"]["name"] for e in written if e["name"] == "process_name"] == ["cell"]
