"""One bad cell costs one record: crashes, hangs, exceptions, wrong answers and, on a GPU, a bad access, with good cells around them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import CORES, DEVICE
from stand_in import light_python

from fusebench.backends import numpy as numpy_backend
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.run import run
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers import state

# They cost a worker its life, and need no Torch for it: without a GPU they run on workers that load none, which start at once.
LIGHT = (
    "dies_before_its_child", "edits_answers", "edits_constants", "exits", "forges_answer", "forks", "half_answer", "keeps_thread", "patches_clock",
    "profiles_ahead", "removes_folder", "segfaults", "sets_affinity", "sets_process", "sets_surroundings", "slows_clock", "undoes_patch", "writes_inputs",
    "writes_records",
)  # fmt: skip
APART = ("hangs", "plants_sibling")
CXX = os.environ.get("CXX")  # which make sets


@pytest.fixture(scope="module")
def run_them(kernels, roots, pool, tmp_path_factory):
    """run_them(names, timeout_s, pythons): the records of implementations, named with their kernels, by name, on one set of workers."""
    folder = tmp_path_factory.mktemp("faults")

    def run_them(names, timeout_s=60.0, pythons=None):
        cells = [Cell(make_case(kernels[kernel], "small"), name, "default") for kernel, name in names]
        settings = Settings(DEVICE, Plan(0.02), timeout_s, pythons=pythons or {})
        return {r.cell.implementation: r for r in run(Run(kernels, roots, folder, settings), cells, pool)}

    return run_them


@pytest.fixture(scope="module")
def results(kernels, run_them, tmp_path_factory):
    """The records of all implementations of the fault kernels; the endless one has 2 s."""
    light = {"torch": light_python(tmp_path_factory.mktemp("light"))} if DEVICE == "cpu" else {}
    everything = [(kernel, name) for kernel in ("fault", "weighted") for name in kernels[kernel].implementations]
    found = run_them([cell for cell in everything if cell[1] not in (*LIGHT, *APART)])
    found |= run_them([cell for cell in everything if cell[1] in LIGHT], 60.0, light)
    found |= run_them([("fault", name) for name in (*APART, "z_fine")], 2.0, light)
    return found | run_them([("exponentials", name) for name in ("by_rows", "by_signs", "nothing_new")])


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("a_fine", "ok", None),
        ("exits", "crashed", "exit code 7"),
        ("segfaults", "crashed", "SIGSEGV"),
        ("hangs", "timeout", "no answer within 2 s (timeout_s sets the limit)"),
        ("raises", "failed", "ValueError: no such tile"),
        ("wrong", "wrong", "[99]"),
        ("misshapen", "wrong", "shape (99,), expected (100,)"),
        ("eighths", "wrong", "dtype float8_e5m2, expected float32"),
        ("returns_nothing", "failed", "returned NoneType, expected an array"),
        ("lazy", "failed", "returned Lazy, expected an array"),
        ("own_detach", "failed", "returned a tensor with a detach of its own"),
        ("lazy_list", "failed", "returned Lazy, expected an array"),
        ("named", "ok", None),
        ("meta", "failed", "tensor on meta rather than"),
        ("numpy_of_jax", "failed", "returned ndarray, expected an array"),
        ("in_thread", "wrong", "error is"),
        ("returns_input", "failed", "returned the memory of an input"),
        ("static_buffer", "ok", None),
        ("two_buffers", "ok", None),
        (
            "prepares_class",
            "failed",
            "an array that the harness copies and compares has become Ahead, expected a plain one",
        ),
        ("prepares_on_copy", "ok", None),
        ("alters_argument", "failed", "has become Later, expected a plain one"),
        ("knows_draws", "ok", None),  # because it works in every call: see below
        ("sets_threads", "ok", None),
        ("sets_dtype", "ok", None),
        ("sets_dtype_back", "ok", None),
        ("sets_flags", "ok", None),
        ("sets_affinity", "ok", None),
        ("sets_jax", "ok", None),
        ("patches_clock", "failed", "it replaced time.perf_counter_ns, which results and clocks depend on"),
        ("patches_torch", "failed", "it replaced torch.Tensor.clone,"),
        ("patches_judge", "failed", "torch.equal"),
        ("undoes_patch", "failed", "it replaced time.perf_counter_ns,"),
        ("slows_clock", "failed", "it replaced the class or bases of time,"),
        ("profiles_ahead", "failed", "it replaced the function of sys.setprofile,"),
        ("sleeps", "ok", None),
        ("forges_answer", "failed", "the worker sent another answer than it was asked for"),
        ("writes_inputs", "failed", "input0.npy"),
        ("writes_records", "failed", "records.jsonl of the run was changed while it ran"),
        ("sets_surroundings", "ok", None),
        ("behaves", "ok", None),
        ("reads_outputs", "wrong", "error is"),
        ("leftovers", "wrong", "a timed call, or one after it: error is"),
        ("fills_empty", "ok", None),
        ("keeps_thread", "ok", None),
        ("joins_thread", "ok", None),
        ("stale", "wrong", "a later call"),
        ("mutates", "wrong", "changed its argument 0"),
        ("mutates_later", "wrong", "a timed call changed its argument 0"),
        ("now_and_then", "wrong", "a timed call, or one after it: error is"),
        ("once", "wrong", "a later call, on other inputs in the same memory"),
        ("second_inputs", "wrong", "a later call, on other inputs in the same memory"),
        ("third_inputs", "wrong", "a timed call, on inputs that none before had"),
        ("from_reference", "failed", "implementations.fault.kernel is the reference"),
        ("other_framework", "failed", "it imports jax, but its BACKEND is torch"),
        ("on_the_sly", "failed", "jax is another framework than torch"),
        ("fused_in_name", "failed", "computes with torch's add beside its own kernels: FUSED says that it does not"),
        ("fused_in_name_jax", "failed", "computes with jax's add beside its own kernels"),
        ("fused_at_first", "failed", "a later call computes with torch's add beside its own kernels"),
        ("fused_indeed", "ok", None),
        ("fused_in_thread", "ok", None),  # without a GPU: see below
        ("once_jax", "wrong", "a later call, on other inputs in the same memory"),
        ("in_place", "ok", None),
        ("in_place_jax", "ok", None),
        ("wavers", "ok", None),
        ("misdeclared", "wrong", "names the point 'outptu'; the formula has output"),
        ("leaves", "failed", "SystemExit"),
        ("gives_up", "failed", "GivenUp: no more"),
        ("lazy_tuple", "wrong", "error is"),
        ("named_tuple", "ok", None),
        ("patches_layer", "failed", "it replaced torch.nn.modules.linear.Linear.forward,"),
        ("edits_constants", "failed", "fusebench.timing.samples.TARGET_SAMPLES"),
        ("refuses", "skipped", "only on Sundays"),
        ("bad_access", "skipped", "needs an NVIDIA GPU"),
        ("unreadable", "failed", "unreadable.py cannot be read"),
        ("prints", "ok", None),
        ("z_fine", "ok", None),
        ("b_prepares", "ok", None),
        ("changes_weight", "wrong", "the call changed its argument 1; it must leave it alone"),
        ("changes_weight_later", "wrong", "a timed call changed its argument 1; it must leave it alone"),
        ("prepare_changes", "wrong", "the call changed its argument 1"),
        ("changes_prepared", "wrong", "the call changed its argument 2"),
        ("recompiles", "failed", "Recompile"),
        ("sets_process", "ok", None),
        (
            "enters_mode",
            "failed",
            "it replaced the modes of torch.utils._python_dispatch, which results and clocks depend on",
        ),
        ("edits_answers", "failed", "it replaced multiprocessing.connection.Connection.send_bytes,"),
        ("half_answer", "failed", "the worker sent another answer than it was asked for"),
        ("forks", "ok", None),
        ("dies_before_its_child", "crashed", "SIGSEGV"),
        ("plants_sibling", "ok", None),
        ("removes_folder", "failed", "input0.npy"),
        ("asks_gradient", "ok", None),
        ("not_callable", "failed", "build() gave NoneType, expected a function to call"),
        ("speechless", "failed", "Speechless: it cannot say what it is: ValueError"),
        ("prepares_no_tuple", "failed", "prepare() gave Tensor, expected a tuple of arrays"),
    ],
)
def test_each_cell_gets_its_own_status(results, name, status, reason):
    if name == "bad_access" and DEVICE == "cuda":
        status, reason = "crashed", "illegal"
    if name == "fused_in_thread" and DEVICE == "cuda":
        status, reason = "failed", "computes with kernels of a library, void at::native"
    if name == "third_inputs" and DEVICE == "cuda":
        status, reason = "ok", None
    if name.startswith("fused_") and name.endswith(("at_first", "indeed")) and DEVICE == "cuda":
        status, reason = "skipped", "written for a CPU"
    assert results[name].status == status
    assert (results[name].reason is None) if reason is None else (reason in results[name].reason)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("sets_threads", "torch threads"),
        ("sets_dtype", "torch default dtype torch.float32 → torch.float64"),
        ("sets_flags", "torch float32 matmul precision highest → medium"),
        ("sets_jax", "jax.config jax_numpy_rank_promotion"),
        ("patches_clock", "time.perf_counter_ns replaced"),
        ("patches_torch", "torch.Tensor.clone replaced"),
        ("patches_judge", "torch.allclose replaced"),
        ("patches_judge", "fusebench.workers.outputs.overlap replaced"),
        ("patches_judge", "fusebench.timing.samples.uncertainty replaced"),
        ("sets_surroundings", "garbage collection on (700, 10, 10) → off"),
        ("sets_surroundings", "variable CUDA_LAUNCH_BLOCKING set to 1"),
        ("sets_surroundings", "live processes 0 → 1"),
        ("sets_surroundings", f"variable CXX {f'{CXX} →' if CXX else 'set to'} /bin/false"),
        ("sets_surroundings", "signals held back 0000000000000000 → 0000000000000200"),
        ("sets_surroundings", "open files "),
        ("edits_constants", "math replaced"),
        ("keeps_thread", "live threads"),
        ("sets_process", "timer ITIMER_REAL False → True"),
        ("sets_process", "SIGTERM handler 0 → 1"),
        ("sets_process", "limit RLIMIT_NOFILE ("),
        ("sets_process", "working folder "),
        ("sets_process", "umask 0"),
        ("sets_process", "warnings as errors 0 → 1"),
        ("enters_mode", "the modes of torch.utils._python_dispatch replaced"),
        ("sets_affinity", "CPU affinity"),
    ],
)
def test_what_a_cell_changed_in_its_process_stands_in_its_record(results, name, changed):
    if name == "sets_affinity" and len(CORES) == 1:
        pytest.skip("there is one core")
    assert any(changed in change for change in results[name].changed), results[name].changed


def test_a_cell_starts_from_the_same_process_whatever_the_one_before_it_did(results):
    """In the order of their names: each of these stands behind one that changes something."""
    for name in ("behaves", "sleeps", "joins_thread", "sets_dtype_back", "z_fine", "a_fine", "static_buffer", "prints"):
        assert results[name].changed == (), name


def test_only_ok_cells_have_a_time(results):
    assert all((r.timing is not None) == (r.status == "ok") for r in results.values() if r.status != "implausible")


def timed_by_the_parent(record, run_them):
    """The record, or that of another run: on a machine that is too busy the parent's clock says nothing."""
    for _ in range(3):
        if record.timing and record.timing.batch is None:
            name = record.cell.implementation
            record = run_them([(record.cell.case.kernel, name)])[name]
    return record


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU the parent's clock says nothing: docs/trust.md")
def test_times_that_were_rewritten_contradict_the_parent_s_clock(results, run_them):
    record = timed_by_the_parent(results["rewrites_samples"], run_them)
    assert record.status == "implausible"
    assert "ms by the parent's clock; by the median they take" in record.reason
    honest = results["sleeps"].timing
    assert not honest.batch or 1e-3 * honest.batch.calls <= honest.batch.seconds <= honest.batch.allowed


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU the parent's clock says nothing: docs/trust.md")
@pytest.mark.parametrize("name", ["by_rows", "by_signs"])
def test_rows_that_were_remembered_take_longer_where_they_are_new(results, run_them, name):
    record = timed_by_the_parent(results[name], run_them)
    assert record.status == "implausible"
    assert "by the parent's clock" in record.reason


def test_what_is_drawn_is_known_to_nobody_who_replaced_a_generator_of_python_s(results):
    assert results["knows_draws"].timing.median >= 1e-3


@pytest.mark.skipif(
    DEVICE == "cuda", reason="on a GPU nobody judges a call on unseen inputs behind the samples: docs/trust.md"
)
def test_rows_that_are_new_behind_the_samples_are_judged(results):
    assert results["nothing_new"].status == "wrong"
    assert results["nothing_new"].reason.startswith("a timed call, on inputs that none before had: error is")
    assert "time_s=0.02" in results["nothing_new"].reproduce


@pytest.mark.gpu
def test_streams_graphs_and_a_cache_of_their_own(run_them):
    """What stands in no order with the clock's kernels is refused, and so is what was captured once."""
    right = ("side_stream_joined", "graph", "persists_l2")
    results = run_them([("fault", name) for name in ("side_stream", "stale_graph", *right)])
    assert results["side_stream"].status in ("failed", "wrong", "implausible"), results["side_stream"]
    assert results["stale_graph"].status == "wrong", results["stale_graph"]
    assert [results[name].status for name in right] == ["ok"] * 3
    assert any("persisting L2 bytes 0 → " in change for change in results["persists_l2"].changed)


@pytest.mark.gpu
def test_outputs_of_timed_calls_are_judged_amid_the_queue(run_them):
    results = run_them([("fault", name) for name in ("works_last", "static_buffer", "two_buffers")])
    assert results["works_last"].status == "wrong", results["works_last"]
    assert [results[name].status for name in ("static_buffer", "two_buffers")] == ["ok"] * 2, results


def test_outputs_that_differ_from_call_to_call_are_flagged(results):
    spread = results["wavers"].parity.nondeterministic
    assert spread.elements == 1 and 0 < spread.max_abs <= 1e-6 and 1 <= spread.calls <= spread.of
    assert results["now_and_then"].parity.nondeterministic.elements == 100
    others = set(results) - {"wavers", "now_and_then", "leftovers"}
    assert all(results[name].parity.nondeterministic is None for name in others)


def test_a_wrong_cell_says_how_to_see_it_again(results):
    assert results["wrong"].reproduce.startswith(
        "fusebench parity kernel=fault implementation=wrong:default case=small"
    )
    again = results["mutates_later"].reproduce
    assert again.startswith("fusebench bench kernel=fault implementation=mutates_later:default case=small")
    assert " time_s=0.02 " in again, "parity makes too few calls to see it"


def test_a_failed_cell_keeps_its_traceback(results):
    assert "no such tile" in results["raises"].traceback


def test_watching_operators_does_not_load_torch_s_compiler():
    """Its import takes seconds, which would count as the cell's compilation."""
    program = (
        "import sys, torch; from fusebench.backends.torch import watch; "
        "print(watch(torch.add, (torch.ones(1), 1))[1], 'torch._dynamo' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[0] == '["torch\'s add"] False'


def test_a_worker_that_was_given_a_cell_measures_no_yardsticks(results, pool):
    assert pool.workers["torch", sys.executable].used


@pytest.mark.parametrize(
    ("module", "counted"), [("torch._inductor.compile_worker.subproc_pool", 0), ("tqdm._monitor", 0), ("elsewhere", 1)]
)
def test_a_thread_of_torch_s_compiler_is_no_implementation_s(module, counted):
    """torch.compile keeps one for its processes on a GPU, and starts it at the first kernel that it compiles."""
    namespace = {"__name__": module, "done": threading.Event()}
    exec("def wait(started):\n    started.set()\n    done.wait()", namespace)
    before, started = state.read(numpy_backend)["live threads"], threading.Event()
    thread = threading.Thread(target=namespace["wait"], args=(started,))
    thread.start()
    started.wait()
    after = state.read(numpy_backend)["live threads"]
    namespace["done"].set()
    thread.join()
    assert after - before == counted


def test_a_pool_that_has_no_work_is_no_change():
    before = state.read(numpy_backend)["live threads"]
    with ThreadPoolExecutor(1) as pool:
        done = threading.Event()
        busy = pool.submit(done.wait)
        assert state.read(numpy_backend)["live threads"] == before + 1
        done.set()
        busy.result()
        end = time.monotonic() + 10
        while (after := state.read(numpy_backend)["live threads"]) > before and time.monotonic() < end:
            time.sleep(0.001)
        assert after == before
