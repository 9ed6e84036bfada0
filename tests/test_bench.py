"""What a worker promises of the cell in its hands: `Bench` on a stand-in back end, and the process around it, in this process."""

from __future__ import annotations

import ast
import errno
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import stand_in

from fusebench import discovery, inputs, machine
from fusebench.backends import numpy as on_host
from fusebench.contract import DTYPES, Case
from fusebench.errors import StorageError
from fusebench.machine import DeviceInfo
from fusebench.records.record import Spread
from fusebench.timing import yardstick
from fusebench.timing.plan import Plan
from fusebench.timing.samples import DRAWN, Samples
from fusebench.workers import answers, late, outputs, protocol, stages
from fusebench.workers.answers import answer, describe
from fusebench.workers.bench import Bench
from fusebench.workers.protocol import Refused

CASE = Case("double", {"N": 4}, "float32", "tf32")
GOOD = """
VARIANTS = {"default": ("output", "product"), "in_place": ()}
IN_PLACE = {"in_place": ("x",)}
def prepare(case, variant, x, w):
    work(1, 10)
    return (w + 1,)
def build(case, variant, device):
    work(2, 20)
    def call(x, w, p):
        work(3, 30)
        return x * w, p
    return call
"""


@pytest.fixture
def backend(monkeypatch):
    return stand_in.install(monkeypatch)


@pytest.fixture
def bench_of(tmp_path, monkeypatch):
    """A function from a program to a Bench and its answer to `build`, on three sets of x with one w."""
    # two programs of one length within a second would have the bytecode of the first
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "double").mkdir()
    files = tmp_path / "files"
    files.mkdir()
    w = np.arange(1, 5, dtype=np.float32)
    made = inputs.save_sets([{"x": np.full(4, 2 + n, np.float32), "w": w} for n in range(3)], files)
    asked = protocol.BuildCell(CASE, "mine", "default", ("x", "w"), tuple(map(tuple, made)), str(files))

    def make(program=GOOD, variant="default", **more):
        (tmp_path / "double" / "mine.py").write_text(stand_in.HEAD + program)
        discovery.use_roots([tmp_path])
        bench = Bench("stand_in", "anything")
        return bench, bench.build(msgspec.structs.replace(asked, variant=variant, **more))

    make.files, make.asked = files, asked
    return make


def call_of(body):
    """A program whose call(x, w, p) has that body, and takes a second."""
    lines = "".join(f"        {line}\n" for line in ["work(1)", *body.splitlines()])
    return GOOD.partition("    def call")[0] + "    def call(x, w, p):\n" + lines + "    return call\n"


# Building


def built(reply):
    """The reply, which is not that a cell could not be built."""
    assert isinstance(reply, protocol.Built), reply
    return reply


def test_a_built_cell_says_what_it_took_and_what_it_made(backend, bench_of, monkeypatch):
    monkeypatch.setattr(machine, "reset_peak_rss", lambda: backend.events.append("reset_peak_rss") or 1000)
    monkeypatch.setattr(machine, "peak_rss", lambda: backend.events.append("peak_rss") or 1089)
    bench, reply = bench_of()
    took = built(reply).build
    assert took.points == ("output", "product") and took.config == {}
    assert took.prepare_s == 1 + 10, "without the inputs' way to the device, with the end of its own work"
    assert took.compile_s == 2 + 20 + 3 + 30, "of building, and of the first call to its end"
    assert took.written_bytes == 2 * 4 * 4
    got = inputs.load(reply.outputs, bench_of.files)
    assert [a.tolist() for a in got] == [[2, 4, 6, 8], [2, 3, 4, 5]]
    assert [stored.file for stored in reply.outputs] == ["first0.npy", "first1.npy"]
    assert bench.arguments.ring.copied == {0}, "a weight is the same in all sets, and so is what was prepared"
    assert [s[0].tolist() for s in bench.arguments.ring.sets] == [[2] * 4, [3] * 4, [4] * 4]
    assert backend.events[:6] == ["start anything", "configure tf32", *["put"] * 4], "three sets of x, and w once"
    assert took.peak_memory_bytes == 89, "beyond what was held when the build began"
    assert backend.events[-4:-1] == ["reset_peak_rss", "wait", "peak_rss"], (
        "with the inputs in place, of the first call"
    )


@pytest.mark.parametrize(("held", "peak", "more"), [(None, 1089, None), (1000, 999, 0), (1000, 1000, 0)])
def test_a_peak_is_never_less_than_what_was_held(backend, bench_of, monkeypatch, held, peak, more):
    monkeypatch.setattr(machine, "reset_peak_rss", lambda: held)
    monkeypatch.setattr(machine, "peak_rss", lambda: peak)
    assert built(bench_of()[1]).build.peak_memory_bytes == more


def test_on_a_gpu_the_peak_is_the_devices(monkeypatch, bench_of):
    backend = stand_in.install(monkeypatch, "cuda")
    _, reply = bench_of()
    assert built(reply).build.peak_memory_bytes == backend.peak
    assert backend.events[-4:-1] == ["reset_peak", "wait", "peak_bytes"]


def test_an_array_that_a_call_overwrites_is_copied_for_each(backend, bench_of):
    bench, reply = bench_of(call_of("x *= w\nreturn x"), "in_place")
    assert built(reply) and bench.arguments.ring.copied == {0}
    program = call_of("y = x * w\nw *= 0\nreturn y").replace('("x",)', '("x", "w")')
    bench, reply = bench_of(program, "in_place")
    assert built(reply) and bench.arguments.ring.copied == {0, 1}
    assert bench.arguments.ring.sets[0][1].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "place"), [("x[0] = 9", 0), ("w[3] = 9", 1), ("p[1] = 9", 2), ("w[:] = x[:] = 9", 0)]
)
@pytest.mark.parametrize("folder", ["files", ""])
def test_the_argument_that_a_call_changed_is_named(backend, bench_of, change, place, folder):
    _, reply = bench_of(call_of(f"y = x * w\n{change}\nreturn y"))
    assert reply == Refused("wrong", f"the call changed its argument {place}; it must leave it alone")
    later = f"y = x * w\ncalls.append(1)\nif len(calls) > 3: {change}\nreturn y"
    bench, reply = bench_of(call_of(later).replace("def build", "calls = []\ndef build"))
    assert built(reply) and bench.repeat(protocol.RepeatCell(str(bench_of.files)))
    plan = Plan(1.0, regime="isolated", cache="warm", calls=6)
    reply = bench.time(protocol.TimeCell(plan, str(bench_of.files) if folder else ""))
    assert reply == Refused("wrong", f"a timed call changed its argument {place}; it must leave it alone")


def test_what_may_be_overwritten_is_no_change(backend, bench_of):
    bench, reply = bench_of(call_of("x *= w\nreturn x"), "in_place")
    assert built(reply) and bench.repeat(protocol.RepeatCell(str(bench_of.files))).nondeterministic is None
    reply = bench.time(protocol.TimeCell(Plan(1.0, calls=6), str(bench_of.files)))
    assert reply.nondeterministic is None and reply.differing == ()


@pytest.mark.parametrize(
    ("body", "kind"), [("return None", "NoneType"), ("return x, 3", "int"), ("return [x, [w]]", "list")]
)
def test_what_is_no_array_is_named(backend, bench_of, body, kind):
    _, reply = bench_of(call_of(body))
    assert reply == Refused("failed", f"the call returned {kind}, expected an array or a tuple of arrays")


def test_a_later_call_may_not_return_an_input_either(backend, bench_of):
    body = "calls.append(1)\nreturn x * w if len(calls) < 3 else x"
    bench, reply = bench_of(call_of(body).replace("def build", "calls = []\ndef build"))
    assert built(reply)
    refused = answer(bench, protocol.RepeatCell(str(bench_of.files)))
    assert refused.status == "failed" and "the memory of an input" in refused.reason


def test_a_cell_that_is_skipped_is_never_built(backend, bench_of):
    program = 'VARIANTS = {"default": ()}\ndef skip(case, variant, device):\n    return f"{case.size(\'N\')} {variant} {device.name}"\n'
    bench, reply = bench_of(program)
    assert reply == Refused("skipped", "(4,) default stand-in")
    assert backend.events == ["start anything", "configure tf32"] and bench.call is None
    _, reply = bench_of('VARIANTS = {"default": ()}\nREQUIRES = {"nosuch": "its-package"}\nimport nosuch\n')
    assert reply == Refused("skipped", "needs nosuch: pip install its-package")


OPERATORS = ["torch's add", "torch's mul"]
WATCHED = Refused(
    "failed", "computes with torch's add, torch's mul beside its own kernels: FUSED says that it does not"
)
FUSED = GOOD + 'FUSED = True\nWITHOUT_GPU = "interpreted"\n'


def test_kernels_of_a_library_that_the_clock_saw_are_held_against_a_fused_implementation(backend, bench_of):
    for program, status in ((GOOD + "FUSED = True\n", "failed"), (GOOD, "timed")):
        bench, reply = bench_of(program)
        assert built(reply)
        sample = bench.sample

        def sampled(*arguments, sample=sample):
            samples = sample(*arguments)
            samples.kernels_seen |= {"mine", "void at::native::reduce_kernel<512>"}
            return samples

        bench.sample = sampled
        reply = bench.time(protocol.TimeCell(Plan(1.0, calls=6)))
        assert isinstance(reply, protocol.Timed if status == "timed" else Refused), reply
        if status == "failed":
            assert "kernels of a library, void at::native::reduce_kernel<512>, beside its own" in reply.reason


def test_later_calls_are_watched(monkeypatch, bench_of):
    backend = stand_in.install(monkeypatch, "cpu")
    bench, reply = bench_of(GOOD + "FUSED = True\n")
    assert built(reply)
    assert isinstance(answer(bench, protocol.RepeatCell(str(bench_of.files))), protocol.Repeated)
    backend.operators = OPERATORS
    for request in (
        protocol.RepeatCell(str(bench_of.files)),
        protocol.TimeCell(Plan(1.0, calls=6), str(bench_of.files)),
    ):
        reply = answer(bench, request)
        assert reply.status == "failed" and reply.reason.startswith("a later call computes with torch's add")


def test_a_weight_that_prepare_changed_is_named(backend, bench_of):
    program = GOOD.replace("    return (w + 1,)", "    w[0] = 9\n    return (w + 1,)")
    _, reply = bench_of(program)
    assert reply == Refused("wrong", "the call changed its argument 1; it must leave it alone")


def test_what_a_weight_is_compared_with_stays_a_plain_array(backend, bench_of):
    """An implementation finds it by the collector of garbage."""
    bench, reply = bench_of()
    assert built(reply)
    bench.arguments.kept[1] = bench.arguments.kept[1].view(type("Mine", (np.ndarray,), {}))
    with pytest.raises(outputs.Unfit, match="copies and compares has become Mine"):
        bench.repeat(protocol.RepeatCell(str(bench_of.files)))


def test_a_later_call_may_not_change_a_weight_either(backend, bench_of):
    body = "calls.append(1)\nif len(calls) == 4: w[0] = 9\nreturn x * 1"
    bench, reply = bench_of(call_of(body).replace("def build", "calls = []\ndef build"))
    assert built(reply)
    reply = bench.repeat(protocol.RepeatCell(str(bench_of.files)))
    assert reply == Refused("wrong", "a later call changed its argument 1; it must leave it alone")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("program", "watched"),
    [(FUSED, True), (GOOD + "FUSED = True\n", True), (GOOD + "FUSED = False\n", False), (GOOD + 'WITHOUT_GPU = "interpreted"\n', False)],
)  # fmt: skip
def test_operators_are_watched_where_an_implementation_declares_that_it_is_fused(
    monkeypatch, bench_of, device, program, watched
):
    backend = stand_in.install(monkeypatch, device)
    backend.operators = OPERATORS
    _, reply = bench_of(program)
    assert ("watch" in backend.events) == watched
    if watched:
        assert reply == WATCHED
    else:
        assert built(reply)


@pytest.mark.parametrize(("device", "calls"), [("cpu", 1), ("cuda", 2)])
def test_the_watch_is_no_part_of_what_compiling_takes(monkeypatch, bench_of, device, calls):
    """It has a call of its own behind the first. Triton's interpreter, where a call takes seconds, makes one alone."""
    backend = stand_in.install(monkeypatch, device)
    program = FUSED.replace("def build", "calls = []\ndef build").replace("work(3", "calls.append(1); work(3")
    _, reply = bench_of(program)
    assert built(reply).build.compile_s == 2 + 20 + 3 + 30
    assert len(sys.modules["implementations.double.mine"].calls) == calls
    if device == "cuda":
        assert backend.events[-5:-1] == ["reset_peak", "wait", "peak_bytes", "watch"]


def test_of_two_roots_the_first_that_has_the_file_is_taken(backend, bench_of, tmp_path, monkeypatch):
    bench, _ = bench_of()
    other = tmp_path / "other" / "double"
    other.mkdir(parents=True)
    (other / "theirs.py").write_text(stand_in.HEAD + GOOD)
    monkeypatch.setattr(sys.modules["implementations"], "__path__", [str(tmp_path), str(tmp_path / "other")])
    assert bench._implementation("double", "theirs").file == other / "theirs.py"
    assert bench._implementation("double", "mine").file == tmp_path / "double" / "mine.py"


def test_a_cell_that_does_not_build_leaves_no_call_of_the_one_before(backend, bench_of):
    bench, _ = bench_of()
    (bench_of.files.parent / "double" / "mine.py").write_text(
        stand_in.HEAD + GOOD.replace("work(2, 20)", "raise ValueError")
    )
    sys.modules.pop("implementations.double.mine")
    with pytest.raises(ValueError):
        bench.build(bench_of.asked)
    assert bench.call is None


COMPILES = """
from pathlib import Path
from fusebench.backends.cuda import compile_cubin
from implementations._shared import used
VARIANTS = {"default": ()}
def build(case, variant, device):
    compile_cubin(Path(__file__).with_name("mine.cu"), "sm_90", ["f"])
    return lambda x, w: x * w
"""
SHARED = {"_shared/used.py": "", "_shared/unused.py": "", "_shared/used.cuh": "", "_shared/unused.cuh": "",
          "double/mine.cu": '#include "_shared/used.cuh"\nextern "C" __global__ void f() {}\n', "double/other.cu": ""}  # fmt: skip


def test_a_built_cell_names_the_files_that_it_is_made_of(backend, bench_of):
    pytest.importorskip("cuda.core")
    root, digests = bench_of.files.parent, {}
    for changed in (None, *SHARED, "double/mine.py"):
        for name, text in SHARED.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text + "\n" * (name == changed))
        _, reply = bench_of(COMPILES + "\n" * (changed == "double/mine.py"))
        digests[changed] = built(reply).sources
    assert set(digests[None]) == {"double/mine.py", "double/mine.cu", "_shared/used.py", "_shared/used.cuh"}
    assert {name for name in digests if digests[name] != digests[None]} == set(digests[None])


def test_a_file_that_is_edited_while_it_is_loaded_is_named_as_it_was(backend, bench_of):
    bench, reply = bench_of()
    (bench_of.files.parent / "double" / "mine.py").write_text("changed")
    assert built(bench.build(bench_of.asked)).sources == reply.sources


# Calling again


def test_repeating_takes_the_first_set_and_then_puts_the_last_one_into_the_same_memory(backend, bench_of):
    program = call_of("calls.append((x, x.copy(), w))\nwork(0, 1)\nreturn x * w").replace(
        "def build", "calls = []\ndef build"
    )
    bench, _ = bench_of(program)
    backend.events.clear()
    reply = bench.repeat(protocol.RepeatCell(str(bench_of.files)))
    calls = sys.modules["implementations.double.mine"].calls[1:]
    assert [values.tolist() for _, values, _ in calls] == [[2] * 4, [2] * 4, [4] * 4]
    assert calls[1][0] is calls[2][0] and calls[0][0] is not calls[1][0]
    assert all(w is bench.arguments.ring.sets[0][1] for _, _, w in calls), "a weight stays where it is"
    assert reply == protocol.Repeated(None, (inputs.Stored("repeated0.npy", "float32"),))
    assert inputs.load(reply.outputs, bench_of.files)[0].tolist() == [4, 8, 12, 16]
    assert backend.events == ["wait"] * 4 and backend.queued == 0, (
        "of three calls, and of the copy of the last one's output"
    )


def test_outputs_that_differ_are_counted_with_their_largest_difference_and_come_back(backend, bench_of):
    body = "calls.append(1)\ny = x * w\nz = w.copy()\nif len(calls) == 3:\n    y[1:3] += (0.25, -0.5)\n    z[0] = 8\nreturn y, z, x.copy()"
    bench, _ = bench_of(call_of(body).replace("def build", "calls = []\ndef build"))
    reply = bench.repeat(protocol.RepeatCell(str(bench_of.files)))
    assert reply.nondeterministic == Spread(3, 7.0, 1, 2)
    ((set_, files),) = reply.differing
    assert set_ == 0 and [s.file for s in files] == [f"differing0-{n}.npy" for n in range(3)]
    assert inputs.load(files, bench_of.files)[0].tolist() == [2, 4.25, 5.5, 8]
    assert inputs.load(reply.outputs, bench_of.files)[0].tolist() == [4, 8, 12, 16], "of the last set, which is right"


# Timing


WRONG_AT = "calls.append(1)\ny = x * w\nif len(calls) in WRONG: y[0] += len(calls)\nreturn y"


def wrong_at(calls):
    """A program whose calls of those numbers are wrong, each by its number; the first four are before the timed ones."""
    return call_of(WRONG_AT).replace("def build", f"calls = []\nWRONG = {calls}\ndef build")


PLAN = Plan(1000.0, target=0, regime="isolated", cache="warm", calls=7)


@pytest.fixture
def timed(bench_of):
    """What timing a program answers, and the number of its calls before the later ones."""

    def time(program, plan=PLAN, folder=True):
        bench, reply = bench_of(program)
        assert built(reply) and bench.repeat(protocol.RepeatCell(str(bench_of.files)))
        reply = bench.time(protocol.TimeCell(plan, str(bench_of.files) if folder else ""))
        assert isinstance(reply, protocol.Timed), reply
        return reply, len(getattr(sys.modules["implementations.double.mine"], "calls", ()))

    return time


def test_where_all_calls_give_the_same_bits_nothing_comes_back(backend, bench_of, timed):
    reply, _ = timed(GOOD)
    assert list(reply.timing.samples) == [33.0] * 7, "to the end of the device's work"
    assert reply.nondeterministic is None and reply.differing == ()


def test_the_last_timed_output_and_some_that_are_drawn_are_compared_with_the_first_ones_on_their_inputs(
    backend, bench_of, timed
):
    """Of the middle one of three sets nothing is known."""
    _, calls = timed(wrong_at(()), folder=False)
    reply, _ = timed(wrong_at(tuple(range(5, calls + 1))))
    assert 2 <= reply.nondeterministic.calls <= 2 + DRAWN
    for set_, files in reply.differing:
        first, doubled = inputs.load(files, bench_of.files)[0], [2, 4, 6, 8] if set_ == 0 else [4, 8, 12, 16]
        assert set_ in (0, 2) and first[1:].tolist() == doubled[1:] and calls - 7 < first[0] - doubled[0] <= calls


def test_a_program_that_is_right_in_the_last_timed_call_on_a_set_is_found_out(backend, bench_of, timed):
    """Of the seven timed calls four are drawn, and no more than three of the others are right or on inputs of which nothing is known."""
    _, calls = timed(wrong_at(()), folder=False)
    reply, _ = timed(wrong_at(tuple(n for n in range(calls - 6, calls + 1) if n != calls - 1)))
    assert reply.differing


@pytest.mark.parametrize(
    ("does", "status", "said"),
    [
        ("x[0] +=", "wrong", "a timed call changed its argument 0; it must leave it alone"),
        ("y = x[:] #", "failed", "the call returned the memory of an input"),
    ],
)
def test_what_a_timed_call_may_not_do_is_seen_in_those_that_are_drawn(backend, bench_of, timed, does, status, said):
    """The last one on the set whose output is kept is right, and so are all that are not timed."""
    _, calls = timed(wrong_at(()), folder=False)
    program = wrong_at(tuple(n for n in range(calls - 6, calls + 1) if n != calls - 1)).replace("y[0] +=", does)
    bench, reply = bench_of(program)
    assert built(reply) and bench.repeat(protocol.RepeatCell(str(bench_of.files)))
    reply = bench.time(protocol.TimeCell(PLAN, str(bench_of.files)))
    assert isinstance(reply, Refused) and reply.status == status and said in reply.reason, reply


def test_what_a_buffer_held_is_not_compared_once_another_call_has_written_to_it(backend, bench_of):
    """Two buffers in turn: that of the last timed call on the kept set is the next but one's, whatever the last later call writes to."""
    program = call_of("calls.append(1)\ny = buffers[len(calls) % 2]\ny[:] = x * w\nreturn y").replace(
        "def build", "import numpy as np\ncalls, buffers = [], np.zeros((2, 4), np.float32)\ndef build"
    )
    for time_s in (100.0, 95.0):  # 21 later calls, or 20
        bench, reply = bench_of(program)
        assert built(reply) and bench.repeat(protocol.RepeatCell(str(bench_of.files)))
        plan = Plan(time_s, target=0, regime="isolated", cache="warm", calls=8)
        reply = bench.time(protocol.TimeCell(plan, str(bench_of.files)))
        assert isinstance(reply, protocol.Timed) and reply.nondeterministic is None and reply.differing == ()


def test_of_the_timed_calls_on_either_set_the_last_may_be_kept(backend, bench_of, monkeypatch):
    """What has its rows moved does not know which one counts."""
    monkeypatch.setattr(backend, "move_rows", on_host.move_rows, raising=False)
    kept = set()
    for seed in range(8):
        bench, reply = bench_of(GOOD)
        assert built(reply)
        bench.arguments.move_rows(protocol.MoveRows({0: 0}, (0,), seed))
        kept.add(bench.arguments.ring.kept)
    assert kept == {0, 1}


def test_of_two_calls_whose_rows_stand_at_the_same_place_other_bits_are_a_spread(backend, bench_of, monkeypatch):
    """The first one's rows stand elsewhere, where a tile at the edge may round otherwise: that alone would be none."""
    monkeypatch.setattr(backend, "move_rows", on_host.move_rows, raising=False)
    rows = protocol.MoveRows({0: 0}, (0,), seed=0)
    bench, reply = bench_of(wrong_at((2,)).replace("x * w", "x * 2"))
    assert built(reply)
    reply = bench.repeat(protocol.RepeatCell(str(bench_of.files), rows))
    assert (reply.nondeterministic.elements, reply.nondeterministic.max_abs, reply.nondeterministic.calls) == (
        1,
        2.0,
        1,
    )


BACKWARD = """
VARIANTS = {"default": ()}
BACKWARD = {"default": ()}
LAST = [None]
def build(case, variant, device):
    def forward(x, w):
        LAST[:] = [x]
        return x * w, x
    def backward(x, g):
        return g * x, g * x
    return forward, backward
"""


@pytest.fixture
def backward(bench_of):
    """A function from a program of mode=backward to a Bench that has built it, on two sets of x and g with one w."""
    w, files = np.ones(4, np.float32), bench_of.files
    sets = [{"x": np.full(4, 2 + n, np.float32), "w": w, "g": np.full(4, 5 + n, np.float32)} for n in range(2)]
    made = tuple(map(tuple, inputs.save_sets(sets, files)))

    def make(program):
        bench, reply = bench_of(
            program, case=replace(CASE, mode="backward"), names=("x", "w", "gradient of y"), sets=made
        )
        built(reply)
        return bench, made[1]

    return make


def test_a_backward_call_has_what_its_own_forward_left(backend, bench_of, backward):
    asked = protocol.RepeatCell(str(bench_of.files))
    bench, _ = backward(BACKWARD)
    reply = bench.repeat(asked)
    assert reply.nondeterministic is None and reply.differing == ()
    assert [a.tolist() for a in inputs.load(reply.outputs, bench_of.files)] == [[6 * 3] * 4] * 2, "of the last set"
    bench, _ = backward(BACKWARD.replace("g * x, g * x", "g * LAST[0], g * x"))
    assert bench.repeat(asked).nondeterministic.calls, "not what that of another set left, which has run since"


def test_unseen_upstream_gradients_are_hidden_until_forward_has_returned(backend, bench_of, backward):
    bench, files = backward(BACKWARD)
    unseen = bench.arguments.unseen(files, bench_of.files)
    assert unseen[0].tolist() == [3] * 4 and list(unseen) == [0, 2]
    assert isinstance(unseen[2], late.Late) and unseen[2].make().tolist() == [6] * 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_very_last_timed_output_is_judged_where_all_are_in_one_buffer(bench_of, monkeypatch, device):
    """The calls that come later write over it."""
    backend = stand_in.install(monkeypatch, device)
    body = "calls.append(1)\nbuffer[:] = x * w\nif len(calls) == 9: buffer[0] += 9\nreturn buffer"
    program = call_of(body).replace(
        "def build", "import numpy as np\ncalls, buffer = [], np.zeros(4, np.float32)\ndef build"
    )
    bench, reply = bench_of(program)
    assert built(reply) and bench.repeat(protocol.RepeatCell(str(bench_of.files)))

    def sample(call, ring, plan):
        samples = Samples("wall", plan)
        for number in range(5):
            place = (0, 2)[number % 2]
            arguments = ring[place]
            samples.time.append(1.0)
            samples.keep(ring, place, arguments, call(*arguments))
        samples.take_last(ring)
        assert samples.last is None
        return samples

    bench.sample = sample
    reply = bench.time(protocol.TimeCell(PLAN, str(bench_of.files)))
    ((set_, files),) = reply.differing
    assert set_ == 0 and inputs.load(files, bench_of.files)[0].tolist() == [2 + 9, 4, 6, 8] and backend.now


def test_calls_after_timing_are_compared_on_the_first_and_the_last_inputs_in_turn(backend, bench_of, timed):
    _, before = timed(wrong_at(()), folder=False)
    found = {}
    for later in (1, 2, 3, 64):
        reply, calls = timed(wrong_at((before + later,)))
        assert calls == before + 64, "of a second each, which is soon over beside 1000"
        ((found[later], files),) = reply.differing
        assert inputs.load(files, bench_of.files)[0][0] == (4 if found[later] else 2) + before + later
        spread = reply.nondeterministic
        assert spread == Spread(1, before + later, 1, spread.of)
        assert 2 + 1 + 64 <= spread.of <= 2 + 1 + 1 + DRAWN + 64, (
            "two in `repeat`, the last timed one on its set, the very last one, those drawn, and these"
        )
    assert found == {1: 0, 2: 2, 3: 0, 64: 2}


def test_one_wrong_call_in_eight_is_found(backend, bench_of, timed):
    _, before = timed(wrong_at(()), folder=False)
    for first in range(1, 9):
        reply, _ = timed(wrong_at(tuple(range(before + first, before + 65, 8))))
        assert reply.nondeterministic.calls == 8 and reply.differing


@pytest.mark.parametrize(("time_s", "later"), [(1000.0, 64), (100.0, 21), (1.0, 4)])
def test_calls_after_timing_take_a_fifth_of_its_time_and_are_at_least_four(backend, bench_of, timed, time_s, later):
    plan = Plan(time_s, target=0, regime="isolated", cache="warm", calls=7)
    assert timed(wrong_at(()), plan)[1] - timed(wrong_at(()), plan, folder=False)[1] == later


def test_without_a_folder_nothing_is_called_again(backend, bench_of, timed):
    reply, _ = timed(wrong_at(tuple(range(5, 200))), folder=False)
    assert reply.nondeterministic is None and reply.differing == ()


def test_letting_go_leaves_nothing_of_the_cell(backend, bench_of):
    bench, _ = bench_of()
    assert bench.arguments.kept and bench.repeats.first
    assert bench.release() == protocol.Released(123)
    assert (
        bench.call is None and len(bench.arguments.ring) == 0 and not bench.arguments.kept and not bench.repeats.first
    )


# What a worker says of itself


@pytest.mark.parametrize("flushes", [DTYPES, ("bfloat16",), ()])
def test_a_worker_introduces_itself(backend, monkeypatch, flushes):
    backend.flushes = flushes
    monkeypatch.setattr(machine, "describe", lambda device: DeviceInfo(device.type, device.name))
    python = "{}.{}.{}".format(*sys.version_info[:3])
    info = protocol.WorkerInfo(DeviceInfo("cpu", "stand-in"), machine.packages(), python, flushes)
    assert Bench("stand_in", "cpu").info() == info


def test_a_device_that_does_not_answer_is_not_usable(backend):
    bench = Bench("stand_in", "cpu")
    assert bench.usable()
    backend.lost = True
    assert not bench.usable()


def test_a_yardstick_gives_its_memory_back(backend, monkeypatch):
    bench = Bench("stand_in", "cpu")
    monkeypatch.setattr(machine, "describe", lambda device: device.name)
    monkeypatch.setattr(yardstick, "key", lambda *parts: ", ".join(map(str, parts)))
    monkeypatch.setattr(yardstick, "measure", lambda *parts: asked.append(parts) or (4.5, 9))
    asked = []
    assert bench.yardstick_key() == protocol.YardstickKey("stand-in, 1.2, 3")
    assert bench.rate(protocol.MeasureRate("copy_gbps", 0.5)) == protocol.MeasuredRate(4.5, 9)
    assert asked == [(backend, backend.device, "copy_gbps", 0.5)] and backend.events[-1] == "release"


def test_written_bytes_are_those_of_all_outputs():
    a, b = np.zeros(3, np.float32), np.zeros(5, np.float16)
    assert [outputs.written_bytes(o) for o in (a, (a, b), [b, b], None, (a, 7))] == [12, 22, 20, 0, 12]


# Errors


class Cell:
    """A Bench whose cell raises what it is told to."""

    def __init__(self, usable=True, releases=True):
        self.is_usable, self.releases, self.done = usable, releases, []

    def do(self, request):
        if isinstance(request.error, BaseException):
            raise request.error
        return protocol.Released(request.error)

    def release(self):
        self.done.append("released")
        if not self.releases:
            raise RuntimeError("lost")

    def usable(self):
        self.done.append("asked")
        return self.is_usable


def request(error, folder="."):
    """What has the cell raise that, or else reply with it."""
    return SimpleNamespace(error=error, folder=str(folder))


@pytest.fixture(autouse=True)
def collected(monkeypatch):
    """What the collector of garbage is asked for; it takes long in a process with as much as this one's."""
    asked = []
    monkeypatch.setattr(answers.gc, "collect", lambda: asked.append("collected"))
    return asked


def test_an_answer_is_the_methods_own():
    cell = Cell()
    assert answer(cell, request(3)) == protocol.Released(3) and not cell.done


@pytest.mark.parametrize(
    ("usable", "releases", "fatal"), [(True, True, False), (False, True, True), (True, False, True)]
)
@pytest.mark.parametrize("error", [ValueError("no such tile"), SystemExit(3)])
def test_an_error_is_fatal_where_the_device_is_lost(collected, usable, releases, fatal, error):
    cell = Cell(usable, releases)
    cell.done = collected
    reply = answer(cell, request(error))
    assert cell.done == ["collected", "released", "asked"][: 3 if releases else 2], (
        "a device that is merely full is not lost"
    )
    assert (reply.status, reply.fatal) == ("failed", fatal)
    assert reply.reason == f"{type(error).__name__}: {error}"


def test_ctrl_c_is_not_the_cells():
    with pytest.raises(KeyboardInterrupt):
        answer(Cell(), request(KeyboardInterrupt()))


def test_what_cannot_be_stored_is_nobodys_fault():
    reply = answer(Cell(), request(StorageError("first0.npy cannot be written")))
    assert reply == Refused("storage", "StorageError: first0.npy cannot be written")


@pytest.mark.parametrize("place", ["folder", "temporary", "home", None])
@pytest.mark.parametrize("free", [answers.FULL_BYTES - 1, answers.FULL_BYTES])
def test_a_disk_is_full_below_64_mib(tmp_path, monkeypatch, place, free):
    places = {name: tmp_path / name for name in ("folder", "temporary", "home")}
    for path in places.values():
        path.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(places["temporary"]))
    monkeypatch.setattr(Path, "home", lambda: places["home"])
    usage = lambda where: SimpleNamespace(free=free if Path(where).name == place else 10**12)  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", usage)
    full = place is not None and free < 64 * 1024 * 1024
    assert answers._is_full(str(places["folder"])) == full
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    reply = answer(Cell(), request(error, places["folder"]))
    assert reply.status == ("storage" if full else "failed")
    reply = answer(Cell(), request(ValueError("something else"), places["folder"]))
    assert reply.status == "failed", "a full disk is no excuse for what has another cause"


def test_a_folder_that_is_gone_is_not_asked_for_its_disk(tmp_path):
    assert answers._is_full(str(tmp_path / "nowhere")) in (True, False)


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return describe(caught)


def test_an_error_is_described_in_one_line_with_its_traceback():
    found = raised(ValueError("\n  no such tile\nmore of it"))
    assert (found.status, found.reason) == ("failed", "ValueError: no such tile")
    assert "more of it" in found.traceback and "in raised" in found.traceback
    line = raised.__code__.co_firstlineno + 2
    assert raised(KeyError()).reason == f"KeyError: at test_bench.py:{line}"
    assert raised(MemoryError()).reason == f"MemoryError: the host's memory is full, at test_bench.py:{line}"
    assert raised(MemoryError("of 3 GB")).reason == "MemoryError: of 3 GB"
    long = raised(ValueError("x" * 9000))
    assert long.reason == ("ValueError: " + "x" * 9000)[:500] and len(long.traceback) == 8000
    assert long.traceback.endswith("xxx\n")


def compilation_error(why, by=None):
    """As Triton raises it, with the source above the place."""
    from triton.compiler.errors import CompilationError

    node = ast.parse("def kernel(x):\n    x += y").body[0].body[0]
    error = CompilationError("def kernel(x):\n    x += y", node, why)
    error.__cause__ = by
    return error


PTXAS_LOG = """Internal Triton PTX codegen error
`ptxas` stderr:
{}
ptxas fatal   : Ptx assembly aborted due to errors

Repro command: ptxas -v /tmp/tmp1u2.ptx"""


@pytest.mark.parametrize("described", [lambda e: raised(e).reason, lambda e: str(stages.failed(e))])
def test_what_a_compiler_of_triton_found_is_said_with_the_place(described):
    pytest.importorskip("triton")
    from triton.runtime.errors import PTXASError

    where = "CompilationError: at 2:4:"
    assert described(compilation_error("dimensions 32 and 64")) == f"{where} dimensions 32 and 64"
    called = compilation_error(None, by=compilation_error("dimensions 32 and 64"))
    assert described(called) == f"{where} dimensions 32 and 64", "in a function that the kernel calls"
    assert described(compilation_error(None)) == f"{where} x += y"
    begin = "PTXASError: PTXAS error: Internal Triton PTX codegen error"
    for line, why in (
        ("ptxas /tmp/tmp1u2.ptx, line 43; error   : Not a name of an instruction", "Not a name of an instruction"),
        (
            "ptxas error   : Entry function 'k' uses too much shared data",
            "Entry function 'k' uses too much shared data",
        ),
        ("", "Ptx assembly aborted due to errors"),
    ):
        assert described(PTXASError(PTXAS_LOG.format(line))) == f"{begin}: {why}"
    assert described(PTXASError("Internal Triton PTX codegen error")) == begin


def test_the_place_of_an_error_is_where_it_was_raised():
    def inner():
        raise MemoryError

    line = inner.__code__.co_firstlineno + 1
    with pytest.raises(MemoryError) as caught:
        inner()
    assert describe(caught.value).reason.endswith(f"test_bench.py:{line}")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (GOOD + "\n\ndef skip(case, variant, device):\n    return 3\n", "skip() gave int, expected the reason or None"),
        (GOOD.replace("def build(", "def biuld("), "mine.py has no build(case, variant, device)"),
    ],
)
def test_a_file_that_is_not_as_the_contract_has_it_is_told_so(backend, bench_of, program, said):
    with pytest.raises(outputs.Unfit) as unfit:
        bench_of(program)
    assert str(unfit.value) == said


# The parent's clock


@pytest.mark.parametrize(
    ("body", "said"), [("return x * w", None), ("return x if x[0] > 50 else x * w", "the memory of an input")]
)
def test_what_a_call_gave_on_an_unseen_set_is_fetched_or_refused(backend, bench_of, body, said):
    bench, reply = bench_of(call_of(body))
    assert built(reply)
    (made,) = inputs.save_sets([{"x": np.full(4, 60, np.float32), "w": np.zeros(4, np.float32)}], bench_of.files)
    assert bench.do(protocol.MakeReady(3, tuple(made), str(bench_of.files))) == protocol.Ready(3)
    assert bench.do(protocol.RunReady()) == protocol.Ran()
    if said:
        with pytest.raises(outputs.Unfit, match=said):
            bench.do(protocol.FetchUnseen(str(bench_of.files)))
        return
    (stored,) = bench.do(protocol.FetchUnseen(str(bench_of.files))).outputs
    assert inputs.load([stored], bench_of.files)[0].tolist() == [60, 120, 180, 240], "with the weights of the others"
