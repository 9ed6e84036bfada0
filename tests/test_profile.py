"""`fusebench profile` from the command line on a CPU, once for all that is looked at; what follows from made events; ncu, by a program that
says what a test has it say."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
from types import SimpleNamespace

import pytest
from conftest import DEVICE, FIXTURES

from fusebench import cli
from fusebench.backends import kineto, xla
from fusebench.backends.events import API, KERNEL, OPERATOR, RANGE, Event, Held, Recording
from fusebench.commands import profile as command
from fusebench.profiling import kernels, run, trace
from fusebench.profiling.run import Profile
from fusebench.records import store
from fusebench.tracing import calls, memory, syncs
from fusebench.tracing.calls import Traced, TracedCall

PROFILED = FIXTURES / "profiled"


@pytest.fixture(scope="module")
def profiled(pool, tmp_path_factory):
    """The run of all implementations of `halved`: its exit code, what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("profiled") / "run"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(_Text()) as out:
        if DEVICE == "cpu":  # otherwise the session's workers are a card's
            patch.setattr(run, "_pool", lambda this: contextlib.nullcontext(pool))
        code = cli.main(
            ["profile", f"path={PROFILED}", "kernel=halved", "device=cpu", "calls=2", f"out_dir={folder}", "-q"]
        )
    profiles = {p.cell.label: p for p in store.read(folder, Profile)}
    with gzip.open(folder / trace.FILE, "rt") as file:
        traced = json.load(file)
    return SimpleNamespace(code=code, out=out.text, folder=folder, profiles=profiles, trace=traced)


class _Text:
    """What is written to it, as rich and print do."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_every_cell_is_profiled_and_the_files_are_named(profiled):
    labels = {"torch_eager:plain", "torch_eager:waits", "torch_eager:twice", "flax:plain", "flax:waits", "numpy"}
    assert profiled.code == 0 and set(profiled.profiles) == labels
    assert {p.record.status for p in profiled.profiles.values()} == {"ok"}
    assert (
        "6 cells: 6 ok" in profiled.out
        and f"trace, for ui.perfetto.dev: {profiled.folder}/trace.json.gz" in profiled.out
    )
    assert "no hardware counters: a CPU has none that ncu reads\n" in profiled.out
    pytest.importorskip("matplotlib")
    assert (profiled.folder / "memory.svg").read_text().startswith("<?xml")


def test_operators_of_torch_and_jax_stand_in_the_rows(profiled):
    def names(label):
        return {row.name: row for row in profiled.profiles[label].rows}

    twice = names("torch_eager:twice")
    assert twice["aten::mul"].count == twice["aten::neg"].count == 1 and "aten::neg" not in names("torch_eager:plain")
    assert any("multiply" in name for name in names("flax:plain")), "XLA's fusion"
    assert not names("numpy") and profiled.profiles["numpy"].memory_of == "process"
    for profile in profiled.profiles.values():
        assert len(profile.spans) in (0, 2)
        assert sum(r.time_s - r.overlap_s for r in profile.rows) <= sum(s.busy_s for s in profile.spans)


def test_a_read_of_a_jax_array_is_named_with_its_line(profiled):
    found = {(s.what, s.place): s for s in profiled.profiles["flax:waits"].syncs}
    assert set(found) == {("block_until_ready", "halved/flax.py:17"), ("JAX array read", "halved/flax.py:18")}
    read = found["JAX array read", "halved/flax.py:18"]
    assert read.count == 1 and read.line.startswith("return y if float(y[0])") and read.seconds > 0
    assert not profiled.profiles["flax:plain"].syncs and not profiled.profiles["torch_eager:waits"].syncs, (
        "on a CPU Torch never waits"
    )


def test_torchs_allocations_are_its_memory(profiled):
    plain, twice = (profiled.profiles[f"torch_eager:{v}"] for v in ("plain", "twice"))
    size, scalar = 4096 * 4, 64  # 0.5 is a tensor for a while too
    assert plain.memory_of == "allocator" and size <= plain.peak_bytes <= size + scalar
    assert (
        2 * size <= twice.peak_bytes <= 2 * size + scalar
        and twice.memory[0].bytes == 0 <= twice.memory[-1].bytes <= size
    )


def _check_trace(written):
    """What Perfetto and the format ask of a trace; the complete events."""
    timed = [e for e in written if e["ph"] != "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    threads = {(e["pid"], e["tid"]) for e in written if e["name"] == "thread_name"}
    processes = {e["pid"] for e in written if e["name"] == "process_name"}
    assert {e["pid"] for e in timed} <= processes
    complete = [e for e in timed if e["ph"] == "X"]
    for event in complete:
        assert event["dur"] >= 0 and (event["pid"], event["tid"]) in threads
    tracks = {}
    for event in complete:  # within a track one event is in another, or behind it
        open_ = tracks.setdefault((event["pid"], event["tid"]), [])
        while open_ and open_[-1] <= event["ts"] + 2e-3:
            open_.pop()
        assert not open_ or event["ts"] + event["dur"] <= open_[-1] + 2e-3
        open_.append(event["ts"] + event["dur"])
    return complete


def test_the_trace_has_a_process_and_ranges_for_each_cell(profiled):
    written = profiled.trace["traceEvents"]
    complete = _check_trace(written)
    names = [e["args"]["name"] for e in written if e["name"] == "process_name"]
    assert sorted(names) == sorted(f"halved/small/float32/{label}" for label in profiled.profiles)
    ranges = [e["name"] for e in complete if e["cat"] == "range"]
    assert ranges.count("halved/small/float32/flax:plain, call 2") == 1 and len(ranges) == 12
    assert any(e["ph"] == "C" and e["args"]["bytes"] > 0 for e in written)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["regime=queu"], "unknown regime 'queu': did you mean queued?"),
        (["regime=queued", "device=cpu"], "regime=queued: a CPU has no stream to queue in"),
        (["calls=0"], "calls"),
        (["resume=latest"], "resume=latest: profile runs as a whole, and no run of it goes on: start it anew"),
        (["resume=it"], "resume=it: profile runs as a whole"),
        (["implementation=flux"], "did you mean flax?"),
        (["cals=3"], "did you mean calls"),
        (["ncu=/nowhere/ncu", "device=cuda"], "ncu=/nowhere/ncu: no such program; expected the path of ncu"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(answered, tmp_path, monkeypatch, words, said):
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "profile.yaml").write_text("kernel: halved\n")  # of a run that was cut off
    monkeypatch.setattr("fusebench.machine.gpu", lambda: {"name": "some GPU", "driver": "580"})
    done = answered("profile", f"path={PROFILED}", "kernel=halved", *words)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_an_interrupted_run_keeps_what_it_has(answered, tmp_path, monkeypatch):
    def interrupted(sweep):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(run, "run", interrupted)
    done = answered("profile", f"path={PROFILED}", "kernel=halved", "device=cpu", "out_dir=it")
    assert done.returncode == 130 and "interrupted: 0 of 6 cells kept in " in done.stderr
    assert (tmp_path / "it" / "trace.json.gz").exists() and (tmp_path / "it" / "profile.yaml").exists()


def test_without_matplotlib_a_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    traced = Traced((), (), (Held(0.0, 0), Held(1.0, 5)))
    assert (
        command._draw([("cell", traced)], tmp_path)
        == "no memory.svg: it needs matplotlib, or the extra plot of fusebench"
    )
    assert command._draw([("cell", Traced())], tmp_path) == ""


# Made events: gaps, overlaps, nesting


def _events(*intervals, kind=KERNEL, track="stream 7"):
    return [Event(name, kind, begin, end, track) for name, begin, end in intervals]


@pytest.mark.parametrize("seed", range(5))
def test_gaps_and_overlaps_are_those_of_a_count_moment_by_moment(seed):
    import random

    draw = random.Random(seed)
    made = _events(
        *((draw.choice("abc"), begin, begin + draw.randint(0, 9)) for begin in draw.choices(range(40), k=12))
    )
    begin, end = min(e.begin for e in made), max(e.end for e in made)
    running = [[e for e in made if e.begin <= t < e.end] for t in range(begin, end)]
    span = kernels.span(made)
    assert (span.span_s, span.busy_s) == (end - begin, sum(map(bool, running)))
    assert span.gaps_s == sum(not own for own in running)
    assert span.overlap_s == sum(len(own) > 1 for own in running)
    rows = kernels.rows(made)
    assert sum(r.gap_s for r in rows) == span.gaps_s and sum(r.count for r in rows) == 12
    for row in rows:
        assert row.time_s == sum(e.end - e.begin for e in made if e.name == row.name)
        assert row.overlap_s == sum(sum(e.name == row.name for e in own) for own in running if len(own) > 1)


def test_the_longest_gap_is_named_by_what_it_stands_before():
    span = kernels.span(_events(("a", 0, 2), ("b", 3, 5), ("c", 9, 10)))
    assert (span.gaps_s, span.longest_gap_s, span.gap_before) == (5, 4, "c")


def test_an_operator_has_the_time_that_those_within_it_leave():
    nested = _events(("linear", 0, 10), ("t", 1, 2), ("addmm", 3, 9), ("gelu", 12, 15), kind=OPERATOR, track="thread 1")
    other = _events(("linear", 1, 4), kind=OPERATOR, track="thread 2")
    span, rows = kernels.summed(TracedCall("call", 0, 20, tuple(nested + other)), "cpu")
    assert {r.name: (r.count, r.time_s) for r in rows} == {
        "linear": (2, 6),
        "t": (1, 1),
        "addmm": (1, 6),
        "gelu": (1, 3),
    }
    assert (span.span_s, span.gaps_s, span.overlap_s, span.launches) == (15, 2, 3, 5)
    assert kernels.summed(TracedCall("call", 0, 20, tuple(nested)), "cuda") is None


def test_events_that_overlap_by_half_stand_in_two_tracks():
    made = _events(("a", 0.0, 5e-6), ("b", 3e-6, 8e-6), ("c", 6e-6, 7e-6))
    traced = Traced((TracedCall("cell, call 1", -1e-6, 9e-6, tuple(made)),), (), (Held(0.0, 0), Held(2e-6, 512)))
    written = trace.events([("cell", traced), ("other", traced)])
    complete = _check_trace(written)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in written if e["name"] == "thread_name"}
    assert {e["name"]: tracks[e["pid"], e["tid"]] for e in complete if e["pid"] == 1} == {
        "cell, call 1": "calls", "a": "stream 7", "b": "stream 7 (2)", "c": "stream 7",
    }  # fmt: skip
    first, second = (next(e for e in complete if e["pid"] == pid and e["name"] == "a") for pid in (1, 2))
    assert first["ts"] == 1 and first["dur"] == 5 and second["ts"] > 9 + 1000
    assert [e["args"]["bytes"] for e in written if e["ph"] == "C" and e["pid"] == 1] == [0, 512]
    order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in written if e["name"] == "thread_sort_index"}
    assert order == {place: place[1] for place in tracks}, "the calls first, then the device"


def test_a_cell_stands_behind_what_the_calls_before_left_running():
    traced = Traced((TracedCall("call", 0.0, 1e-6, tuple(_events(("a", 0.0, 5e-3)))),), (), ())
    first, second = (e for e in trace.events([("cell", traced), ("other", traced)]) if e["name"] == "a")
    assert second["ts"] >= first["ts"] + first["dur"] == 5000


# What the profilers write


def test_a_range_of_ours_is_told_from_torchs_own():
    import torch

    def work(mark):
        with mark("of ours"), torch.profiler.record_function("of the framework"):
            torch.ones(2).add_(1)

    kinds = {e.name: e.kind for e in kineto.record(work, "cpu").events}
    assert (kinds["of ours"], kinds["of the framework"]) == (RANGE, OPERATOR)


def test_what_jax_runs_is_recorded_with_our_ranges():
    import jax

    def work(mark):
        with mark("of ours"):
            jax.block_until_ready(jax.jit(lambda x: x @ x)(jax.numpy.ones((2, 2))))

    found = xla.record(work).events
    (ours,) = (e for e in found if e.kind == RANGE)
    assert ours.name == "of ours" and 0 < ours.end - ours.begin < 60


def test_a_trace_of_torchs_profiler_on_a_gpu_is_read():
    def x(cat, name, ts, dur, tid=1, **args):
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}

    def memory_(ts, size, type_):
        return {
            "ph": "i",
            "name": "[memory]",
            "ts": ts,
            "pid": 1,
            "tid": 1,
            "args": {"Bytes": size, "Device Type": type_},
        }

    launch = {"grid": [4, 2, 1], "block": [128, 1, 1], "registers per thread": 40, "shared memory": 2048}
    written = {
        "baseTimeNanoseconds": 1_000_000_000,
        "traceEvents": [
            x("kernel", "k", 30.5, 2.0, stream=7, **launch), x("gpu_memcpy", "Memcpy DtoH", 40.0, 1.0, stream=8, bytes=64),
            x("cuda_runtime", "cudaStreamSynchronize", 41.0, 5.0), x("user_annotation", "ours", 10.0, 50.0),
            x("user_annotation", "Torch-Compiled Region", 11.0, 40.0), x("cpu_op", "aten::mul", 12.0, 3.0), x("ac2g", "flow", 1.0, 1.0),
            memory_(12.0, 100, 1), memory_(13.0, 7, 0), memory_(20.0, -100, 1),
        ],
    }  # fmt: skip
    found = kineto.read(written, {"ours"}, "cuda", 1_000_000_000)
    assert [(e.name, e.kind, e.track) for e in found.events] == [
        ("ours", RANGE, "thread 1"), ("Torch-Compiled Region", OPERATOR, "thread 1"), ("aten::mul", OPERATOR, "thread 1"),
        ("k", KERNEL, "stream 7"), ("Memcpy DtoH", "copy", "stream 8"), ("cudaStreamSynchronize", API, "thread 1"),
    ]  # fmt: skip
    kernel = found.events[3]
    assert (kernel.begin, kernel.end) == pytest.approx((30.5e-6, 32.5e-6)) and kernel.details == {
        "grid": "4×2", "block": "128", "registers": 40, "shared_bytes": 2048,
    }  # fmt: skip
    assert [(h.at, h.bytes) for h in found.memory] == [(pytest.approx(12e-6), 100), (pytest.approx(20e-6), 0)]
    assert kineto.read(written, {"ours"}, "cpu", 0).events[0].begin == pytest.approx(1 + 10e-6)


def test_a_trace_of_jaxs_profiler_is_read():
    written = [
        {"ph": "M", "pid": 1, "tid": 5, "name": "thread_name", "args": {"name": "tf_XLAEigen/123"}},
        {"ph": "X", "pid": 1, "tid": 5, "name": "dot.1", "ts": 7.0, "dur": 2.0, "args": {"hlo_op": "dot.1"}},
        {"ph": "X", "pid": 1, "tid": 6, "name": "PjitFunction", "ts": 6.0, "dur": 2.0},
        {"ph": "X", "pid": 1, "tid": 6, "name": "ours", "ts": 5.0, "dur": 9.0}, {},
    ]  # fmt: skip
    found = xla.read({"traceEvents": written}, {"ours"}, 0).events
    assert [(e.name, e.kind, e.track) for e in found] == [("ours", RANGE, "6 6"), ("dot.1", OPERATOR, "tf_XLAEigen 5")]
    assert found[1].end == pytest.approx(9e-6)


def test_memory_during_a_call_is_beyond_what_was_held_at_its_begin():
    seen = [Held(0.5, 100), Held(1.5, 300), Held(2.0, 50), Held(9.0, 1)]
    assert memory.during(seen, 1.0, 3.0) == (Held(0.0, 0), Held(0.5, 200), Held(1.0, -50))


class Waiting:
    """A back end whose profiler sees CUDA's calls at moments that a test gives, by the line at which they were made."""

    def __init__(self):
        self.seen = []

    def wait(self, outputs):
        pass

    def record(self, work):
        work(None)
        return Recording(tuple(self.seen), (), 0)


def test_waits_in_cudas_calls_are_named_with_the_line_of_that_moment(tmp_path, monkeypatch):
    import time

    (tmp_path / "softmax").mkdir()
    file = tmp_path / "softmax" / "slow.py"
    file.write_text("def call(wait):\n    y = 1\n    wait('cudaStreamSynchronize')\n    wait('cudaLaunchKernel')\n    for _ in range(2):\n        y = wait('cuMemcpyDtoH_v2')\n    return y\n")  # fmt: skip
    module = {}
    exec(compile(file.read_text(), str(file), "exec"), module)
    backend = Waiting()

    def wait(name):
        begin = time.time_ns()
        while time.time_ns() - begin < 20_000:
            pass
        backend.seen.append(Event(name, API, begin / 1e9, time.time_ns() / 1e9))

    found = syncs.find(backend, module["call"], [wait], "cuda", [str(tmp_path)])
    assert {(s.what, s.place, s.line, s.count) for s in found} == {
        ("cudaStreamSynchronize", "softmax/slow.py:3", "wait('cudaStreamSynchronize')", 1),
        ("cuMemcpyDtoH_v2", "softmax/slow.py:6", "y = wait('cuMemcpyDtoH_v2')", 2),
    }
    backend.seen = [Event("cudaDeviceSynchronize", API, 0.0, 1.0)]  # the harness's own, before the call
    assert syncs.find(backend, lambda: None, [], "cuda", [str(tmp_path)]) == ()


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaDeviceSynchronize", True), ("cuCtxSynchronize", True), ("cuEventSynchronize", True), ("cudaMemcpy", True), ("cudaMemcpyAsync", False),
        ("cuMemcpyDtoHAsync_v2", False), ("cuMemcpyDtoH_v2", True), ("cudaFree", True), ("cudaFreeAsync", False), ("cuLaunchKernel", False),
        ("cudaStreamWaitEvent", False),
    ],
)  # fmt: skip
def test_which_calls_wait(name, waits):
    assert bool(syncs.WAITS.match(name)) == waits


def test_flushes_last_longer_than_the_launch_of_a_call():
    marker = SimpleNamespace(name="flush", duration=1e-4)
    assert [calls._flushes(marker, host_s) for host_s in (0.0, 2e-4, 1.0)] == [3, 8, 50] and calls._flushes(
        None, 1.0
    ) == 0


@pytest.mark.gpu
def test_on_a_card_kernels_waits_and_memory_are_those_of_the_call(tmp_path, capsys):
    words = [
        "kernel=halved",
        "implementation=[torch_eager,flax]",
        "case=large",
        "counters=false",
        f"out_dir={tmp_path / 'run'}",
    ]
    assert cli.main(["profile", f"path={PROFILED}", *words]) == 0, capsys.readouterr().out
    found = {p.cell.label: p for p in store.read(tmp_path / "run", Profile)}
    assert [r.count for r in found["torch_eager:plain"].rows] == [1] and found["torch_eager:plain"].rows[0].launch[
        "block"
    ]
    assert found["torch_eager:twice"].span.launches == 2 and found["flax:plain"].span.launches == 1
    assert {s.place for s in found["torch_eager:waits"].syncs} == {"halved/torch_eager.py:10"}
    assert {s.place for s in found["flax:waits"].syncs} >= {"halved/flax.py:17", "halved/flax.py:18"}
    assert not found["torch_eager:plain"].syncs and not found["flax:plain"].syncs
    size = 4 * 2**24
    assert found["torch_eager:plain"].peak_bytes == size and found["torch_eager:twice"].peak_bytes == 2 * size
    assert found["flax:plain"].peak_bytes >= size
    with gzip.open(tmp_path / "run" / trace.FILE, "rt") as file:
        assert any(e["cat"] == "kernel" for e in _check_trace(json.load(file)["traceEvents"]))
