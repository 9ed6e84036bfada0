"""The path of a cell, with a pool that has no processes: what a worker is asked, what is judged, and what stands in the record."""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import numpy as np
import pytest
from conftest import FIXTURES
from samples import CPU, GPU, RATES, TIMES, US, Now, Pool, Worker, case, timing, untimed, wrong

import fusebench
from fusebench import discovery, library, machine
from fusebench import run as running
from fusebench.case_data import SETS, CaseData, reference_key
from fusebench.cases import make_case
from fusebench.cell import INTERPRETER_FLOPS, Trial, rated
from fusebench.contract import Cell, Device
from fusebench.errors import StorageError
from fusebench.inputs import make_sets
from fusebench.parity.verdict import Worst
from fusebench.records import store
from fusebench.records.record import Build, Parity, Record
from fusebench.run import run
from fusebench.settings import Clock, Run, Settings
from fusebench.timing import yardstick, yardstick_cache
from fusebench.timing.plan import Plan
from fusebench.timing.summary import Clocks
from fusebench.timing.yardstick import Rate, Rates
from fusebench.workers.pool import WorkerLost
from fusebench.workers.protocol import (
    AskYardstickKey,
    BuildCell,
    CheckedRows,
    CheckRows,
    EvaluateRows,
    MeasureRate,
    MoveRows,
    Refused,
    Release,
    RepeatCell,
    TimeCell,
)

ROOTS = discovery.roots_of([FIXTURES / "kernels", FIXTURES / "faults"])
KERNELS = discovery.find_kernels(ROOTS)
HERE = sys.executable
PLAN = Plan(0.5, 0.02, "isolated", "warm")
STEPS = [BuildCell, RepeatCell, TimeCell]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Yardsticks of the test's own."""
    monkeypatch.setenv("FUSEBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True, scope="module")
def importable():
    """The kernels' modules import from the roots of this module's tests."""
    discovery.use_roots(ROOTS)


def cell(implementation="a_fine", variant="default", kernel="fault", size="odd", dtype="float32", **more):
    return Cell(make_case(KERNELS[kernel], size, dtype), implementation, variant, **more)


def fault(mathematics=None, **described):
    """The kernel `fault` with some of its mathematics changed, and its first implementation described otherwise."""
    kernel = KERNELS["fault"]
    first = replace(kernel.implementations["a_fine"], **described)
    changed = replace(kernel.mathematics, **(mathematics or {}))
    return replace(kernel, mathematics=changed, implementations={**kernel.implementations, "a_fine": first})


def prepared(tmp_path, kernel=KERNELS["fault"], **settings):
    kernels = {**KERNELS, "fault": kernel}
    return Run(kernels, ROOTS, tmp_path / "run", Settings(**({"plan": PLAN} | settings)))


def done(tmp_path, *cells, pool=None, **settings):
    """The records of those cells."""
    return list(run(prepared(tmp_path, **settings), cells or [cell()], pool or Pool()))


def asked(pool):
    """What the worker was asked for its cells, without the yardsticks."""
    return [m for m in pool.worker.asked if not isinstance(m, AskYardstickKey | MeasureRate)]


def kinds(pool):
    return [type(m) for m in asked(pool)]


# What a worker is asked, and the record that follows


@pytest.mark.parametrize("large", [False, True])
def test_the_reference_s_worker_is_wanted_where_the_judge_does_not_see_all(tmp_path, monkeypatch, large):
    monkeypatch.setattr(running, "_needs_reference", lambda trial: large)
    pool = Pool()
    assert [record.status for record in done(tmp_path, pool=pool)] == ["ok"]
    assert (("start", *reference_key(Settings())) in pool.events) == large


def test_a_cell_is_built_called_again_timed_and_let_go(tmp_path):
    pool = Pool()
    (record,) = done(tmp_path, cell("a_fine"), pool=pool, timeout_s=7.0)
    assert kinds(pool) == [*STEPS, Release]
    build, repeat, time, _ = asked(pool)
    assert (build.case, build.implementation, build.variant, build.config) == (cell().case, "a_fine", "default", {})
    assert build.names == ("x",) and len(build.sets) == SETS and build.folder == repeat.folder == time.folder
    assert time.plan == Plan(0.5, 0.02, "isolated", "warm", calls=1000)
    assert set(pool.worker.timeouts) == {7.0} and pool.worker.held_bytes == 12
    assert record.status == "ok" and record.reason is None
    assert (record.time_s, record.timeout_s, record.computes) == (0.5, 7.0, "")
    found = record.environment
    assert (found.device, found.packages, found.python) == (CPU, {"numpy": "2"}, "3.12.1"), "the worker's"
    assert record.source.file.endswith("a_fine.py")
    assert set(record.source.files) == {"fault/a_fine.py", "fault/kernel.py"}
    assert not list((tmp_path / "run").glob(".inputs-*")), "what was handed over is gone"


def test_tunables_that_are_set_reach_the_worker_and_what_it_took_the_record(tmp_path):
    pool = Pool(Worker({BuildCell: {"build": Build(0.25, 3.0, 10**6, 28, config={"BLOCK": 64, "num_warps": 8})}}))
    (record,) = done(tmp_path, cell(config={"num_warps": 8}), pool=pool)
    assert asked(pool)[0].config == {"num_warps": 8} and record.build.config == {"BLOCK": 64, "num_warps": 8}


def test_the_record_has_each_figure_in_its_unit(tmp_path):
    """7 elements doubled: 7 FLOPs, 28 bytes read and 28 written, in 100 µs. At 4 GB/s the 56 bytes take 14 ns, a launch 1 µs."""
    (record,) = done(tmp_path)
    assert record.timing == timing(TIMES, "isolated", "warm") and record.timing.median == pytest.approx(100 * US)
    assert (record.work.flops, record.work.moved_bytes, record.build.written_bytes) == (7, 56, 28)
    assert record.rates.tflops == pytest.approx(7 / 1e-4 / 1e12) and record.rates.gbps == pytest.approx(56 / 1e-4 / 1e9)
    assert record.rates.best_s == pytest.approx(1 * US) and record.rates.yardstick_share == pytest.approx(0.01)
    assert record.rates.bound_s is None and record.build.peak_memory_bytes == 10**6
    assert record.build.prepare_s == 0.25 and record.build.compile_s == pytest.approx(3.0 - 100 * US), (
        "the first call less one call"
    )
    assert replace(record.rates.yardsticks, measured={}) == Rates(4.0, 5.0, 1e-6, {})
    assert set(record.rates.yardsticks.measured) == {"copy_gbps", "read_gbps", "launch_s"}
    assert record.parity.first.ratio == record.parity.repeated.ratio == record.parity.timed.ratio == 0
    assert datetime.fromisoformat(record.ended) >= datetime.fromisoformat(record.began)
    assert record.reproduce == "" and record.traceback == ""


def test_a_call_as_slow_as_its_first_one_compiled_nothing(tmp_path):
    (record,) = done(tmp_path, pool=Pool(Worker(times=[4.0] * 6)))
    assert record.build.compile_s == 0


def test_each_record_is_on_disk_before_it_is_yielded(tmp_path):
    this = prepared(tmp_path)
    cells = [cell("a_fine"), cell("z_fine"), cell("prints")]
    got = []
    for record in run(this, cells, Pool()):
        got.append(record)
        assert store.read(this.folder, Record) == got
    assert [r.cell.implementation for r in got] == ["a_fine", "z_fine", "prints"]


@pytest.mark.parametrize(
    ("step", "number", "key", "which"),
    [(BuildCell, 0, "first", ""), (RepeatCell, -1, "repeated", "a later call, on other inputs in the same memory: "),
     (TimeCell, -1, "timed", "a timed call, or one after it: ")],
)  # fmt: skip
@pytest.mark.parametrize("right", [True, False])
def test_each_output_is_judged_by_the_inputs_that_it_was_computed_from(
    tmp_path, monkeypatch, step, number, key, which, right
):
    made = Worker.reply

    def other(self, request):
        reply = made(self, request)
        if isinstance(request, step):
            outputs = wrong(self, number if right else -1 - number, "other")
            change = {"differing": ((SETS - 1, outputs),)} if step is TimeCell else {"outputs": outputs}
            return msgspec.structs.replace(reply, **change)
        return reply

    monkeypatch.setattr(Worker, "reply", other)
    pool = Pool()
    (record,) = done(tmp_path, pool=pool)
    if right:
        assert record.status == "ok"
        return
    assert record.status == "wrong" and record.reason.startswith(f"{which}error is ")
    assert getattr(record.parity, key).ratio > 1
    assert record.timing is None and record.rates is None, "a wrong cell has no time"
    assert kinds(pool) == [*STEPS[: 1 + STEPS.index(step)], Release]


@pytest.mark.parametrize("elements", [10**9, 8])
def test_what_chose_the_rows_that_were_judged_or_where_they_stood_is_on_record(tmp_path, monkeypatch, elements):
    monkeypatch.setattr("fusebench.parity.view.JUDGED_ELEMENTS", elements)
    elsewhere = Refused("failed", "no device")
    pool = Pool(Worker({CheckRows: CheckedRows(Worst(checked=100)), EvaluateRows: elsewhere}))
    kernel = fault({"rows": {"x": 0, "y": 0}})
    (record,) = done(tmp_path, cell(size="small"), pool=pool, kernel=kernel, rows_seed=77)
    assert record.status == "ok" and record.parity.rows_seed == 77
    assert [m.rows for m in asked(pool) if isinstance(m, RepeatCell)] == [MoveRows({0: 0}, (0,), 77)]
    assert record.parity.first.some_rows == (elements == 8)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_is_not_ok_is_the_last(tmp_path, step):
    pool = Pool(Worker({step: Refused("failed", "raised", "…")}))
    (record,) = done(tmp_path, pool=pool)
    assert (record.status, record.reason, record.traceback) == ("failed", "raised", "…") and record.rates is None
    assert kinds(pool)[-2:] == [step, Release]


def test_points_that_are_declared_are_what_is_judged(tmp_path, monkeypatch):
    """The output rounded to bfloat16's bits is wrong unless the program says that it stores it, or the back end flushes."""
    seen = []
    judge = CaseData.judge
    monkeypatch.setattr(
        CaseData,
        "judge",
        lambda self, out, points, part, set_, pool: (
            seen.append((points, part, set_)) or judge(self, out, points, part, set_, pool)
        ),
    )
    worker = Worker({BuildCell: {"build": Build(0.25, 3.0, 10**6, 28, points=("output",))}})
    worker.info = msgspec.structs.replace(worker.info, flushes=("float32",))
    done(tmp_path, pool=Pool(worker))
    assert seen == [(("output", "subnormals"), "", n) for n in (0, SETS - 1, SETS - 1)]
    (build,) = (m for m in worker.asked if isinstance(m, BuildCell))
    assert {n for _, _, n in seen} == set(range(len(build.sets))), "no set's outputs are left out"
    seen.clear()
    done(tmp_path / "other", pool=Pool(Worker({BuildCell: {"build": Build(0.25, 3.0, 10**6, 28, points=("output",))}})))
    assert {points for points, _, _ in seen} == {("output",)}


def test_a_part_of_a_kernel_is_judged_as_that_part(tmp_path):
    halved = fault({"parts": {"half": lambda case, r, x: (r.compute(x / 2),)}}, computes="half")
    (record,) = done(tmp_path, kernel=halved)
    assert record.computes == "half" and record.status == "wrong" and record.parity.first.ratio > 1


def test_parity_alone_times_nothing_and_asks_for_no_rates(tmp_path):
    pool = Pool()
    (record,) = done(tmp_path, pool=pool, plan=Plan(time_s=0))
    assert [type(m) for m in pool.worker.asked] == [BuildCell, RepeatCell, Release]
    assert record.status == "ok" and record.timing is None and record.time_s == 0 and record.rates is None


def test_cells_of_one_case_share_their_inputs_and_others_do_not(tmp_path):
    made, inputs = [], KERNELS["fault"].mathematics.inputs
    cells = [cell("a_fine"), cell("z_fine"), cell("z_fine", seed=1), cell("z_fine", inputs="nan"), cell("z_fine", size="small")]  # fmt: skip
    done(tmp_path, *cells, kernel=fault({"inputs": lambda case, rng: made.append(case.id) or inputs(case, rng)}))
    assert made == ["odd/float32"] * 3 * SETS + ["small/float32"] * SETS


def test_the_inputs_are_those_of_the_cell_s_seed_and_kind(tmp_path, monkeypatch):
    found = []
    made = Worker.reply

    def watched(self, request):
        reply = made(self, request)
        if isinstance(request, BuildCell):
            found.append(Path(self.folder, self.sets[0][0].file).read_bytes())
        return reply

    monkeypatch.setattr(Worker, "reply", watched)
    done(tmp_path, cell(), cell(seed=1), cell(inputs="nan"), plan=Plan(time_s=0))
    assert len(set(found)) == 3
    expected = [
        make_sets(KERNELS["fault"].mathematics, cell().case, *which)[0]["x"]
        for which in ((0, 1, "plain"), (1, 1, "plain"), (0, 1, "nan"))
    ]
    for content, array in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.frombuffer(content[-28:], np.float32), array)


# Where the time goes


def test_each_part_of_a_run_is_counted_where_it_belongs(tmp_path, monkeypatch):
    now, phases = Now(100.0), []
    monkeypatch.setattr("time.perf_counter", now)
    takes = {BuildCell: 2.0, RepeatCell: 3.0, TimeCell: 5.0, Release: 100.0, MeasureRate: 7.0}

    class Slow(Pool):
        def start(self, *home):
            now.now += 11.0

        def get(self, *home, beside=False):
            now.now += 0.25
            return self.worker

    inputs = KERNELS["fault"].mathematics.inputs

    def drawn(case, rng):
        now.now += 13.0
        return inputs(case, rng)

    this = prepared(tmp_path, fault({"inputs": drawn}))
    this.on_phase = lambda cell, phase: phases.append((cell.id, phase))
    list(run(this, [cell()], Slow(Worker(clock=now, takes_s=takes))))
    assert this.clock.start_up == pytest.approx(11.0 + 2 * 0.25) and this.clock.inputs == pytest.approx(13.0 * SETS)
    assert this.clock.compile == pytest.approx(2.0) and this.clock.parity == pytest.approx(3.0)
    assert this.clock.timing == pytest.approx(5.0 + 3 * 7.0 + 0.25), "three rates"
    assert phases == [(cell().id, p) for p in ("compile", "parity", "parity", "parity", "timing", "parity")]


def test_a_phase_that_ends_badly_is_counted_all_the_same(monkeypatch):
    now, clock = Now(5.0), Clock(parity=1.0)
    monkeypatch.setattr("time.perf_counter", now)
    with pytest.raises(KeyError), clock.during("parity"):
        now.now += 2.0
        raise KeyError
    assert clock == Clock(parity=3.0)


def test_all_workers_start_before_any_is_waited_for(tmp_path):
    pool = Pool()
    done(tmp_path, cell("a_fine"), cell("in_place_jax"), pool=pool)
    jax, torch = ("jax", HERE), ("torch", HERE)
    assert pool.events[:4] == [("start", *jax), ("start", *torch), ("get", *jax), ("get", *torch)]


def test_the_worker_of_the_yardsticks_starts_with_the_others(tmp_path):
    pool = Pool()
    done(tmp_path, cell("in_place_jax"), pool=pool)
    assert ("start", "torch", HERE) in pool.events
    pool = Pool()
    done(tmp_path / "parity", cell("in_place_jax"), pool=pool, plan=Plan(time_s=0))
    assert not [e for e in pool.events if e[1] == "torch"], "parity needs no yardsticks"
    pool = Pool()
    this = Run(discovery.find_kernels([discovery.HOME]), [discovery.HOME], tmp_path / "none", Settings(plan=PLAN))
    (record,) = run(this, [Cell(make_case(this.kernels["softmax"], "odd"), "liger", "default")], pool)
    assert record.status == "skipped" and not pool.events, "nothing runs, so nothing starts"


def test_a_worker_has_the_interpreter_that_is_named_for_it(tmp_path):
    pool = Pool()
    pythons = {"a_fine": "/a", "torch": "/t"}
    done(tmp_path, cell("a_fine"), cell("z_fine"), pool=pool, pythons=pythons, plan=Plan(time_s=0))
    assert {e[1:] for e in pool.events} == {("torch", "/a"), ("torch", "/t")}


# Whatever one cell does, the others get their records


def test_a_worker_that_is_lost_costs_its_cell_alone(tmp_path):
    worker = Worker({BuildCell: WorkerLost("timeout", "no answer within 5 s")})
    pool = Pool(worker)
    got = done(tmp_path, cell("a_fine"), pool=pool)
    assert [(r.status, r.reason) for r in got] == [("timeout", "no answer within 5 s")]
    assert pool.events[-1] == ("drop", "torch", HERE) and got[0].ended


def test_a_worker_that_cannot_let_go_is_dropped(tmp_path):
    pool = Pool(Worker({Release: WorkerLost("crashed", "gone")}))
    assert [r.status for r in done(tmp_path, pool=pool)] == ["ok"]
    assert pool.events[-1] == ("drop", "torch", HERE)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_kernel_that_raises_costs_its_own_cell(tmp_path, device):
    def raises(case):
        if case.id.startswith("odd"):
            raise ArithmeticError("no such work")
        return 1

    got = done(tmp_path, cell(), cell(size="small"), kernel=fault({"flops": raises}), device=device)
    assert [(r.status, r.reason) for r in got] == [("failed", "ArithmeticError: no such work"), ("ok", None)]


def test_a_broken_implementation_fails_with_its_reason(tmp_path):
    pool = Pool()
    (record,) = done(tmp_path, cell("unreadable"), pool=pool)
    assert record.status == "failed" and record.reason.startswith("unreadable.py cannot be read")
    assert not pool.worker.asked


def test_a_full_disk_ends_the_run_and_names_the_cell(tmp_path):
    this = prepared(tmp_path)
    with pytest.raises(StorageError, match=r"^fault/odd/float32/a_fine/seed=0: no room$"):
        list(run(this, [cell()], Pool(Worker({RepeatCell: StorageError("no room")}))))
    assert store.read(this.folder, Record) == [], "a run that goes on has this cell before it"


def test_a_wrong_cell_has_the_command_that_checks_it_again(tmp_path):
    paths = ",".join(map(str, ROOTS[1:]))
    failed = Refused("wrong", "the call changed its argument 0")
    (record,) = done(tmp_path, cell(seed=3, inputs="nan"), pool=Pool(Worker({BuildCell: failed})))
    assert record.reproduce == (
        f"fusebench parity kernel=fault implementation=a_fine:default case=odd dtype=float32 precision=ieee seed=3 inputs=nan device=cpu 'path=[{paths}]'"
    )
    (record,) = done(tmp_path / "b", pool=Pool(Worker({BuildCell: Refused("failed", "x")})))
    assert record.reproduce == ""


@pytest.mark.parametrize("threads", [None, 2])
def test_what_only_a_timed_call_shows_is_timed_again_in_the_same_way(tmp_path, threads):
    pool = Pool(Worker({TimeCell: Refused("wrong", "a timed call changed its argument 0")}))
    (record,) = done(tmp_path, pool=pool, threads=threads)
    assert record.reproduce.startswith("fusebench bench kernel=fault")
    end = " time_s=0.5 target=0.02 regime=isolated cache=warm"
    assert record.reproduce.endswith(end + (" threads=2" if threads else ""))


def test_run_starts_and_ends_its_own_workers_without_a_pool(tmp_path, monkeypatch):
    made = []

    def fake(*arguments, timed=False):
        made.append((*arguments, timed))
        return contextlib.nullcontext(Pool())

    for inline, name in ((True, "InlinePool"), (False, "Pool")):
        monkeypatch.setattr(running, name, fake)
        this = prepared(tmp_path / name, inline=inline, threads=3)
        assert [r.status for r in run(this, [cell()])] == ["ok"]
    assert made == [("cpu", ROOTS, 3, False), ("cpu", ROOTS, tmp_path / "Pool" / "run", 3, True)]


# What cannot run here


@pytest.mark.parametrize(
    ("device", "without_gpu", "change", "reason"),
    [
        ("cpu", "timed", {}, None),
        ("cpu", "unavailable", {}, "needs an NVIDIA GPU"),
        ("cuda", "unavailable", {}, None),
        ("cpu", "timed", {"precision": "tf32"}, "tf32 is a precision of tensor cores: the CPU has none"),
        ("cuda", "timed", {"precision": "tf32"}, None),
        ("cpu", "interpreted", {"dtype": "bfloat16"}, "interpreted on the CPU, where Triton computes bfloat16 wrongly"),
        ("cpu", "interpreted", {"dtype": "float16"}, None),
        ("cpu", "timed", {"dtype": "bfloat16"}, None),
        ("cuda", "interpreted", {"dtype": "bfloat16"}, None),
        ("cpu", "interpreted", {"sizes": {"N": int(INTERPRETER_FLOPS) // 8}}, None),
        (
            "cpu",
            "interpreted",
            {"sizes": {"N": int(INTERPRETER_FLOPS) // 8 + 1}},
            "interpreted on the CPU, where 2.5e+08 FLOPs take minutes (at most 2.5e+08): try case=odd",
        ),
        ("cpu", "timed", {"sizes": {"N": int(INTERPRETER_FLOPS) // 8 + 1}}, None),
        ("cuda", "interpreted", {"sizes": {"N": int(INTERPRETER_FLOPS) // 8 + 1}}, None),
    ],
)
def test_what_cannot_run_here_is_skipped_with_its_reason(tmp_path, device, without_gpu, change, reason):
    this = prepared(tmp_path, fault(without_gpu=without_gpu, requires={"triton": "triton"}), device=device)
    trial = Trial(this, replace(cell(), case=replace(cell().case, **change)))
    assert trial.can_run() == (reason is None)
    assert trial.record.status == ("ok" if reason is None else "skipped")
    assert trial.record.reason == reason
    assert len(running.worker_keys(this, [trial.cell])) == (reason is None)


def test_many_flops_on_few_bytes_are_too_many_as_well(tmp_path):
    this = prepared(tmp_path, fault({"flops": lambda case: 3e8}, without_gpu="interpreted"))
    trial = Trial(this, cell())
    assert not trial.can_run() and "3.0e+08 FLOPs" in trial.record.reason


def test_inputs_that_a_formula_leaves_open_are_skipped(tmp_path):
    (record,) = done(tmp_path, cell(inputs="inf"), kernel=fault({"hard": lambda case: {"nan": ("x",)}}))
    assert record.status == "skipped"
    assert record.reason == "the formula of fault leaves open what inf inputs give in float32"


@pytest.mark.parametrize(("time_s", "status"), [(0.5, "skipped"), (0, "ok")])
def test_an_interpreted_kernel_is_checked_and_never_timed(tmp_path, time_s, status):
    pool = Pool()
    (record,) = done(tmp_path, kernel=fault(without_gpu="interpreted"), plan=Plan(time_s), pool=pool)
    assert record.status == status and record.parity.first.ratio <= 1 and record.timing is None
    assert record.reason == ("interpreted on the CPU: right, but never timed" if time_s else None)
    assert kinds(pool) == [BuildCell, Release]


# The yardsticks


def test_rates_are_measured_once_a_run_and_kept_for_the_next(tmp_path):
    pool = Pool()
    multiplies = fault({"precisions": ("ieee", "tf32")})
    done(tmp_path, cell(), cell(size="small"), cell(dtype="float16"), kernel=multiplies, pool=pool, timeout_s=9.0)
    names = [m.name for m in pool.worker.asked if isinstance(m, MeasureRate)]
    assert names == ["copy_gbps", "read_gbps", "launch_s", "matrix_tflops/float32/ieee", "matrix_tflops/float16/ieee"]
    assert set(yardstick_cache.read("card")) == set(names)
    again = Pool()
    (record,) = done(tmp_path / "again", pool=again)
    assert not any(isinstance(m, MeasureRate) for m in again.worker.asked)
    assert record.rates.best_s == pytest.approx(1e-6)


@pytest.mark.parametrize("flops", [0, None])
def test_a_kernel_without_flops_asks_for_no_rate_of_products(tmp_path, flops):
    own = {"flops": lambda case: flops} if flops is not None else {}
    pool, kernel = Pool(), fault({"precisions": ("ieee", "tf32")} | own)
    (record,) = done(tmp_path, pool=pool, kernel=kernel)
    names = [m.name for m in pool.worker.asked if isinstance(m, MeasureRate)]
    assert names[:3] == ["copy_gbps", "read_gbps", "launch_s"]
    assert len(names) == (3 if flops == 0 else 4) and record.rates.tflops == (0 if flops == 0 else pytest.approx(7e-8))


def test_a_kernel_without_a_product_is_held_against_the_bandwidth(tmp_path):
    """Whatever FLOPs it has: here 7 of them, of a product 14 seconds."""
    slow = Pool(Worker({MeasureRate: lambda asked: {"value": 5e-13} if "/" in asked.name else {}}))
    multiplies, without = (
        done(tmp_path / name, kernel=fault({"precisions": own}), pool=slow)[0]
        for name, own in (("a", ("ieee", "tf32")), ("b", ("ieee",)))
    )
    assert multiplies.rates.best_s == pytest.approx(14) and without.rates.best_s == pytest.approx(1 * US)
    assert without.rates.yardsticks.product is None


def test_rates_are_measured_by_a_worker_that_has_loaded_no_implementation(tmp_path):
    pool = Pool()
    pool.worker.used = True
    done(tmp_path, cell("in_place_jax"), cell("in_place_jax", size="small"), pool=pool)
    assert [e[0] for e in pool.events if e[1] == "torch"] == ["start", "get", "get", "drop", "get"]


def test_what_a_cell_changed_is_on_record_and_the_next_one_gets_another_worker(tmp_path):
    pool = Pool(Worker({Release: {"changed": ("torch threads 2 → 1",)}}))
    (record,) = done(tmp_path, cell("in_place_jax"), pool=pool)
    assert record.status == "ok" and record.changed == ("torch threads 2 → 1",)
    assert [e[0] for e in pool.events if e[1] == "jax"][-1] == "drop"


def test_a_cell_without_rates_has_its_time_all_the_same(tmp_path):
    pool = Pool(lost=("torch",))
    got = done(tmp_path, cell("in_place_jax"), cell("in_place_jax", size="small"), pool=pool)
    assert [r.status for r in got] == ["ok", "ok"] and [r.rates.yardsticks for r in got] == [None, None]
    rates = got[0].rates
    assert rates.best_s is None and rates.yardstick_share is None and rates.gbps > 0
    assert [e[0] for e in pool.events if e[1] == "torch"] == ["start", "get", "get", "drop"], "asked for once"


def test_the_rates_are_torch_s_in_the_interpreter_that_is_named_for_it(tmp_path):
    pool = Pool()
    done(tmp_path, cell("in_place_jax"), pool=pool, pythons={"torch": "/t"})
    assert ("get", "torch", "/t") in pool.events


def record_of(seconds, flops=0, moved=0, written=0, clocks=None, device=GPU, dtype="float32", precision="ieee"):
    """A record as it is before its rates."""
    return untimed(
        device=device, of=case(dtype=dtype, precision=precision), work=(flops, moved), build=Build(0.0, 0.0, None, written),
        timing=replace(timing([seconds] * 6), clocks=clocks),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flops", "moved", "written", "best"),
    [
        (0, 10**6, 0, 8 * US),  # 1 MB at 125 GB/s
        (0, 10**6, 500_000, 10 * US),  # at 100 GB/s
        (0, 10**6, 250_000, 9 * US),  # half of each
        (5 * 10**9, 10**6, 0, 100 * US),  # 5 GFLOP at 50 TFLOP/s
        (1, 1, 1, 2 * US),  # a launch
    ],
)
def test_rates_and_the_best_time_of_a_cell(flops, moved, written, best):
    record = rated(record_of(20 * US, flops, moved, written), RATES)
    rates = record.rates
    assert rates.tflops == pytest.approx(flops / 20e-6 * 1e-12) and rates.gbps == pytest.approx(moved / 20e-6 * 1e-9)
    assert rates.best_s == pytest.approx(best) and rates.yardstick_share == pytest.approx(best / (20 * US))
    assert rates.yardsticks is RATES and record.status == "ok"


@pytest.mark.parametrize(
    ("dtype", "precision", "tflops"),
    [("float32", "ieee", 66.9), ("float32", "tf32", 494.7), ("float16", "ieee", 989.5)],
)
def test_a_time_below_the_datasheet_s_is_implausible_and_one_above_is_not(dtype, precision, tflops):
    h200 = replace(GPU, name="NVIDIA H200")
    bound = 10**9 / (tflops * 1e12)
    for factor, status in ((1.001, "ok"), (0.999, "implausible")):
        record = rated(record_of(bound * factor, 10**9, device=h200, dtype=dtype, precision=precision), None)
        assert record.status == status and record.rates.bound_s == pytest.approx(bound)
    assert record.reason == f"{bound * 0.999e6:.2f} µs is below {bound * 1e6:.2f} µs, which no such card can beat"


@pytest.mark.parametrize(("says", "status"), [("contradicts", "implausible"), ("agrees", "ok"), ("n/a", "ok")])
def test_clocks_that_contradict_each_other_are_implausible(says, status):
    clocks = Clocks(says, 1e-3, 1e-3, 1e-3, 0.0, 0.0, "they do not agree")
    record = rated(record_of(1e-3, clocks=clocks), RATES)
    assert record.status == status and record.reason == ("they do not agree" if status != "ok" else None)


@pytest.mark.parametrize(
    ("others", "reason"),
    [(0, "they do not agree"), (1, "they do not agree, beside 1 other program on this GPU"), (3, "they do not agree, beside 3 other programs on this GPU")],
)  # fmt: skip
def test_clocks_may_contradict_each_other_because_others_use_the_gpu(monkeypatch, others, reason):
    monkeypatch.setattr(machine, "others_on_gpu", lambda: others)
    clocks = Clocks("contradicts", 1e-3, 1e-3, 1e-3, 0.0, 0.0, "they do not agree")
    assert rated(record_of(1e-3, clocks=clocks, device=GPU), RATES).reason == reason
    assert rated(record_of(1e-3, clocks=clocks, device=replace(GPU, type="cpu")), RATES).reason == "they do not agree"


# fusebench.measure


KNOWN = {
    "copy_gbps": 100.0, "read_gbps": 125.0, "launch_s": 2e-6, "matrix_tflops//ieee": 50.0, "matrix_tflops/float32/tf32": 400.0,
}  # fmt: skip


class Bench:
    """A bench on a simulated device, whose first call takes 3 s and each later one 100 µs."""

    def __init__(self, backend, device):
        self.name, self.device = backend, Device(device, "NVIDIA H200" if device == "cuda" else "some CPU", (9, 0), 132)
        self.backend, self.done = self, []

    def peak(self):
        self.done.append("watch")
        return lambda: self.done.append("peak") or 12345

    def wait(self, output):
        self.done.append(f"wait {output}")
        self.now.now += 3.0

    def sample(self, call, ring, plan):
        self.ring, self.plan = ring, plan
        return SimpleNamespace(
            summary=lambda: timing(TIMES, "queued" if self.device.type == "cuda" else "isolated"),
            output=(SimpleNamespace(nbytes=250_000), 3),
        )


@pytest.fixture
def measured(monkeypatch):
    """`fusebench.measure` on the simulated device, of which an earlier run has left KNOWN: (record, bench)."""

    def measure(*arguments, device="cpu", **options):
        now, benches = Now(50.0), []

        def make(backend, where):
            benches.append(Bench(backend, where))
            benches[0].now = now
            return benches[0]

        torch = ModuleType("fusebench.backends.torch")
        torch.versions = lambda: ("2", 3)
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
        monkeypatch.setitem(sys.modules, torch.__name__, torch)
        monkeypatch.setattr("time.perf_counter", now)
        monkeypatch.setattr(library, "Bench", make)
        monkeypatch.setattr(library, "_back_end", lambda *_: ("torch", device))
        monkeypatch.setattr(yardstick, "key", lambda found, *versions: f"{found.type} {versions}")
        yardstick_cache.keep(f"{device} ('2', 3)", {name: Rate(value, 1, "2026") for name, value in KNOWN.items()})
        return library.measure(*arguments, **options), benches[0]

    return measure


def test_measure_gives_the_record_of_a_cell(measured):
    how = {"time_s": 0.25, "target": 0.5, "regime": "isolated", "cache": "cold"}
    record, bench = measured(len, "text", name="mine", flops=5 * 10**9, moved_bytes=10**6, **how)
    assert bench.done == ["watch", "wait 4", "peak"] and bench.ring == [["text"]]
    assert bench.plan == Plan(0.25, 0.5, "isolated", "cold")
    cell = record.cell
    assert (record.label, record.kernel, cell.implementation, cell.variant) == ("mine", "mine", "mine", "default")
    assert record.status == "ok" and (cell.case.id, cell.case.precision) == ("mine", "ieee")
    assert record.parity == Parity() and record.time_s == 0.25
    assert record.timing.median == pytest.approx(100 * US) and record.timing.regime == "isolated"
    assert (record.work.flops, record.work.moved_bytes, record.build.written_bytes) == (5 * 10**9, 10**6, 250_000)
    assert record.rates.tflops == pytest.approx(50) and record.rates.gbps == pytest.approx(10)
    assert record.rates.best_s == pytest.approx(100 * US) and record.rates.yardstick_share == pytest.approx(1)
    build = record.build
    assert build.prepare_s == 0 and build.compile_s == pytest.approx(3 - 100 * US) and build.peak_memory_bytes == 12345
    assert record.device.name == "some CPU" and datetime.fromisoformat(record.ended).tzinfo
    measured_at = dict.fromkeys(("copy_gbps", "read_gbps", "launch_s", "matrix_tflops"), "2026")
    assert record.rates.yardsticks == Rates(100.0, 125.0, 2e-6, measured_at, 50.0, 1, "/ieee")


def test_measure_on_a_gpu(measured):
    array = SimpleNamespace(dtype="torch.float32")
    record, bench = measured(lambda array: 1, array, name="mine", device="cuda", flops=10**12)
    assert bench.plan == Plan(0.5, 0.01, "auto", "auto")
    assert record.case.precision == "unknown"
    assert record.rates.bound_s == pytest.approx(10**12 / 989.5e12), "at the highest of the card's rates"
    assert record.status == "implausible" and record.rates.yardsticks.matrix_tflops == 400, "TF32's"


@pytest.mark.parametrize(
    ("argument", "dtype"),
    [(SimpleNamespace(dtype="torch.float16"), "float16"), (SimpleNamespace(dtype="int64"), "int64"), (3, "")],
)
def test_measure_knows_the_dtype_of_its_first_argument(measured, argument, dtype):
    record, _ = measured(lambda *_: 1, argument, 2.0)
    assert record.case.dtype == dtype and record.label == "<lambda>"


def test_measure_refuses_what_the_device_does_not_have(measured):
    with pytest.raises(ValueError, match="regime=queued: a CPU has no stream"):
        measured(len, "text", regime="queued")
    with pytest.raises(ValueError, match="time_s is 0"):
        measured(len, "text", time_s=0)


def test_measure_of_plain_python():
    record = fusebench.measure(lambda: math.sqrt(2.0), time_s=0.001, backend="numpy")
    assert record.timing.timer == "wall" and record.device.type == "cpu" and record.build.written_bytes == 0
    assert record.case.dtype == "" and record.rates.tflops is None
    with pytest.raises(AttributeError, match="'fusebench' has no attribute 'nosuch'"):
        _ = fusebench.nosuch
