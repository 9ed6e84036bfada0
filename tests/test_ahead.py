"""Configs that are compiled ahead: what hangs or crashes a compiler costs its own row, and what compiled is found by the first call."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from conftest import FIXTURES
from stand_in import light_python
from test_tune import PlantedPool

from fusebench import discovery, progress
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.contract import Cell, Device
from fusebench.records import store
from fusebench.records.record import Record
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.tuning import ahead, strategies, study
from fusebench.tuning.study import Found, Search
from fusebench.workers import protocol
from fusebench.workers.compiler import Compiler
from fusebench.workers.cores import Cores
from fusebench.workers.pool import WorkerLost

H200 = Device("cuda", "sm_90", (9, 0), 132)
BAD = {"crashes": "crashed", "hangs": "timeout", "raises": "failed"}


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "kernels" / "double"
    folder.mkdir(parents=True)
    shutil.copy(FIXTURES / "kernels" / "double" / "kernel.py", folder)
    shutil.copy(FIXTURES / "planted_configs" / "double" / "torch_compiled.py", folder)
    return folder.parent


@pytest.fixture
def planted(root, tmp_path):
    """The run, a pool that stands for a card's workers, and a function that makes the study of some values."""
    kernels = discovery.find_kernels([root])
    settings = Settings("cpu", Plan(0.01), compile_timeout_s=1.0, pythons={"torch": light_python(tmp_path)})
    this = Run(kernels, [root], tmp_path / "run", settings)
    this.folder.mkdir()
    pool = PlantedPool(kernels["double"].implementations["torch_compiled"])
    pool.cores = Cores(1)

    def found(**space):
        cell = Cell(make_case(kernels["double"], "small"), "torch_compiled", "default")
        one = study.Study(cell, space)
        fits = study.ask_fits(this, pool, one, Search("grid", None, 0))
        return Found(one, msgspec.structs.replace(fits, device=H200))

    return this, pool, found


class Compilers:
    """Stands in for the pool of one compiler, without a process: what it says to a config is planted."""

    def __init__(self, says, device, roots, logs, beside):
        self.says, self.home, self.asked, self.worker = says, (device, roots, beside), [], None

    def get(self, *key):
        self.asked.append(("get", *key))
        self.worker = self.worker or SimpleNamespace(get=self.answer, ask=self.answer)
        return self.worker

    def answer(self, asked, expected, limit_s):
        load = isinstance(asked, protocol.Load)
        self.asked.append(("load", asked.implementation) if load else (asked.config["BLOCK"], asked.arch, limit_s))
        said = self.says["load" if load else asked.config["BLOCK"]]
        if isinstance(said, Exception):
            raise said
        return said

    def drop(self, *key):
        self.asked.append(("drop", *key))
        self.worker = None

    def stop(self):
        self.asked.append("stop")

    def __exit__(self, *raised):
        self.asked.append("exit")


@pytest.fixture
def compiled(planted, monkeypatch):
    """What becomes of configs with that BLOCK each, by one compiler that says what is planted; and what it was asked for."""
    this, pool, _ = planted
    case, crew = make_case(this.kernels["double"], "small"), []

    def compile_(says, blocks):
        monkeypatch.setattr(ahead, "Pool", lambda *of, **more: crew.append(Compilers(says, *of, **more)) or crew[-1])
        cells = [Cell(case, "torch_compiled", "default", config={"BLOCK": block}) for block in blocks]
        outcomes = list(ahead.compile_all(this, pool, cells, ahead.Target("sm_90a", H200), 1))
        (one,) = crew
        assert one.home == ("cuda", this.roots, pool)
        return [(o.cell.config["BLOCK"], o.status, o.reason, o.traceback, o.seconds) for o in outcomes], one.asked

    return compile_


def test_a_compiler_that_is_lost_is_replaced_and_costs_its_config_alone(compiled):
    says = {
        "load": protocol.Loaded(), 1: protocol.CompiledAhead(1.5), 2: WorkerLost("crashed", "the worker died"),
        3: protocol.Refused("failed", "it raises", "at line 3"), 4: WorkerLost("timeout", "no answer (timeout_s=1)"),
    }  # fmt: skip
    outcomes, asked = compiled(says, [1, 2, 3, 1, 4, 1])
    assert outcomes == [
        (1, "ok", "", "", 1.5), (2, "crashed", "compiling ahead: the compiler died", "", 0.0), (3, "failed", "it raises", "at line 3", 0.0),
        (1, "ok", "", "", 1.5), (4, "timeout", "compiling ahead: no answer (compile_timeout_s=1)", "", 0.0), (1, "ok", "", "", 1.5),
    ]  # fmt: skip
    key = asked[0][1:]
    assert key[0] == ahead.COMPILER
    get, load, drop = ("get", *key), ("load", "torch_compiled"), ("drop", *key)
    assert asked[:-2] == [
        get, load, (1, "sm_90a", 1.0), get, (2, "sm_90a", 1.0), drop, get, load, (3, "sm_90a", 1.0), get, (1, "sm_90a", 1.0),
        get, (4, "sm_90a", 1.0), drop, get, load, (1, "sm_90a", 1.0),
    ], "an implementation is imported once by each compiler"  # fmt: skip
    assert sorted(asked[-2:]) == ["exit", "stop"]


def test_a_compiler_that_cannot_import_compiles_nothing(compiled):
    outcomes, asked = compiled({"load": WorkerLost("failed", "no such module")}, [1, 2])
    assert outcomes == [] and [a[0] for a in asked[:3]] == ["get", "load", "drop"]


def test_what_fails_in_the_compiler_costs_its_own_row_and_is_never_built(planted):
    this, pool, found = planted
    one, search = found(NUMBER=(2, 3), compiler=("right", *BAD)), Search("grid", None, 0)
    outcomes = list(study.compile_ahead(this, pool, [one], search, jobs=2))
    assert Counter(o.status for o in outcomes) == {"ok": 2, "crashed": 2, "timeout": 2, "failed": 2}
    assert len(one.records) == 6 and all(r.status == BAD[r.cell.config["compiler"]] for r in one.records.values())
    reasons = {r.status: r.reason for r in one.records.values()}
    assert reasons["crashed"].startswith("compiling ahead: the compiler ended: killed by SIGABRT")
    assert reasons["timeout"] == "compiling ahead: no answer within 1 s (compile_timeout_s sets the limit)"
    assert "ptxas has no answer to" in reasons["failed"]
    kept = store.read(this.folder, Record)
    assert len(kept) == 6 and all(r.ended and r.source for r in kept), "each is on disk"
    assert not [f for f in this.folder.iterdir() if f.name.startswith(".inputs")]
    list(study.run(this, pool, one, search))
    assert [c["compiler"] for c in pool.built] == ["right"] * 2 and len(one.records) == 8
    assert list(study.compile_ahead(this, pool, [one], search, jobs=2)) == [], "what is on record is not compiled again"


def test_a_search_that_is_interrupted_leaves_no_compiler_behind(planted):
    this, pool, found = planted
    one = found(NUMBER=(2, 3), compiler=("right", "hangs"))
    begin = time.monotonic()
    outcomes = study.compile_ahead(
        replace(this, settings=replace(this.settings, compile_timeout_s=600.0)), pool, [one], Search("grid", None, 0), 2
    )
    next(outcomes)
    outcomes.close()
    assert time.monotonic() - begin < 60, "none was waited for"


@pytest.mark.parametrize(
    ("strategy", "trials", "jobs", "count"),
    [("grid", None, 4, 16), ("grid", 3, 4, 3), ("random", 5, 4, 5), ("optuna", 2, 4, 0), ("optuna", 4, 4, 16)],
)
def test_what_is_compiled_is_what_will_be_tried(planted, strategy, trials, jobs, count):
    this, pool, found = planted
    one = found(NUMBER=(0, 1, 2, 3), compiler=("right", *BAD))
    search = Search(strategy, trials, 3)
    planned = study._planned(one, search, jobs)
    assert len(planned) == count
    if strategy != "optuna":
        assert dict(planned[0]) == dict(one.default)
        order = strategies.after(one.default, study._strategy(this, pool, one, search))
        tried = list(strategies.search(order, {}, lambda config: 1.0, search.budget(one.fits)))
        assert [strategies.key(c) for c in tried] == [strategies.key(c) for c in planned]


# The public path, without a GPU


def heeds_interrupts():
    """Also where the tests run in the background of a script, whose shell has SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def tuned(tmp_path, root, capfd, *words):
    code = main([
        "tune", f"path={root}", "kernel=double", "implementation=torch_compiled", "device=cpu", "threads=1", "compile_timeout_s=1",
        f"worker.python.torch={light_python(tmp_path)}", "arch=sm_90a", "jobs=2", *words,
    ])  # fmt: skip
    return code, *capfd.readouterr()


def test_for_an_arch_what_fits_is_compiled_and_nothing_runs(root, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    code, printed, told = tuned(tmp_path, root, capfd, "config.NUMBER=2", "out=all.json")
    assert code == 0, told
    assert "4 configs: 4 fit; 4 tried: 1 skipped, 1 failed, 1 crashed, 1 timeout" in printed
    assert "kept:" not in printed, "nothing was to be timed"
    assert [line.split(" done; ")[0] for line in told.splitlines()][-4:] == [f"{n} of 4" for n in (1, 2, 3, 4)]
    rows = json.loads((tmp_path / "all.json").read_text())
    assert sum(str(r["reason"]).startswith("compiled for sm_90a in ") for r in rows) == 1
    assert not (tmp_path / "built").exists() and not (root / "double" / "tuned.json").exists()
    assert main(["tune", "resume=latest"]) == 0
    assert len(store.read(next((tmp_path / "results").iterdir()), Record)) == 4, "none is compiled twice"


def test_what_ctrl_c_and_kill_9_leave_is_gone_on_with(root, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = [
        f"path={root}", "kernel=double", "implementation=torch_compiled", "device=cpu", "threads=1", "inputs=plain", "time_s=0.005",
        f"worker.python.torch={light_python(tmp_path)}", f"config.NUMBER={list(range(24))}", "config.compiler=right", "confirm=false",
        "out_dir=run", "save=false",
    ]  # fmt: skip
    records, started = tmp_path / "run" / store.FILE, tmp_path / "built"
    interrupted = ((words, 1, signal.SIGINT, 130), (["resume=run"], 5, signal.SIGKILL, -9))
    for asked, held, by, code in interrupted:  # while the config of that NUMBER is in hand
        (tmp_path / "hold").write_text(str(held))
        command = [sys.executable, "-m", "fusebench.cli", "tune", *asked]
        with subprocess.Popen(command, start_new_session=True, preexec_fn=heeds_interrupts) as process:
            while not (started.exists() and f"{held} right" in started.read_text().splitlines()):
                assert process.poll() is None, "it ended by itself"
                time.sleep(0.02)
            process.send_signal(by)
            assert process.wait() == code
    (tmp_path / "hold").unlink()
    printed, told = capfd.readouterr()
    assert "configs on record; to go on: fusebench tune resume=" in told and " tried: " in printed, "and what there is"
    before = records.read_text().splitlines()
    assert main(["tune", "resume=run"]) == 0
    assert records.read_text().splitlines()[: len(before)] == before, "all is kept"
    kept = [r.id for r in store.read(tmp_path / "run", Record)]
    assert len(kept) == len(set(kept)) == 24, "each once"
    built = Counter((tmp_path / "built").read_text().splitlines())
    assert sum(built.values()) <= 24 + len(interrupted), "but what was in hand when it ended"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["arch=sm_91"], "unknown arch 'sm_91'"),
        (["jobs=-1"], "jobs is -1: expected an integer of 0 or more"),
        (["jobs=many"], "jobs is 'many': expected an integer of 0 or more"),
    ],
)
def test_what_cannot_be_compiled_for_is_answered_by_one_line(root, tmp_path, monkeypatch, capfd, words, said):
    monkeypatch.chdir(tmp_path)
    code, _, told = tuned(tmp_path, root, capfd, *words)
    assert code == 2 and said in told and len(told.splitlines()) == 1 and not (tmp_path / "results").exists()


# What a first call finds


def test_a_first_call_of_triton_finds_what_was_compiled(tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels = discovery.find_kernels(discovery.roots_of())
    module = discovery.load_implementation("lola", "triton")
    case = make_case(kernels["lola"], "odd", "bfloat16")
    config = {**module.config(case, "multirow_ws", H200), "num_stages": 2}
    asked = protocol.CompileAhead(case, "triton", "multirow_ws", config, H200, "sm_90a")
    Compiler("cuda").do(asked)
    kept = len(list(tmp_path.iterdir()))
    (launch,) = module.launches(case, "multirow_ws", H200, config)
    launch.kernel.device_caches.clear()  # a fresh process
    pointers = {"*bf16": torch.bfloat16, "*fp32": torch.float32}
    arguments = [triton.runtime.jit.MockTensor(pointers[t]) if t in pointers else 37 for t in launch.signature.values()]
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    launch.kernel.run(*arguments, grid=launch.grid, warmup=True, **launch.constexprs, **options)
    assert kept and len(list(tmp_path.iterdir())) == kept, "bind()(*arguments) up to the launch"


def test_a_size_of_64_bits_is_compiled_as_one_and_none_is_divisible_by_16(monkeypatch):
    """Triton takes the type of a number from its value, and makes use of what divides it."""
    from fusebench.workers import compiler

    monkeypatch.setattr(pytest.importorskip("triton.runtime.driver").driver, "set_active", lambda target: None)
    seen = {}
    kernel = SimpleNamespace(arg_names=["x", "rows", "step", "BLOCK"], warmup=lambda **given: seen.update(given))
    signature = {"x": "*bf16", "rows": "i64", "step": "i32"}
    compiler._compile_triton(SimpleNamespace(signature=signature, constexprs={"BLOCK": 32}, kernel=kernel, grid=(3,), num_warps=4, num_stages=2), H200)  # fmt: skip
    assert seen.pop("x").dtype == pytest.importorskip("torch").bfloat16
    assert (
        seen.pop("rows") % 16
        and seen.pop("step") % 16
        and seen == {"BLOCK": 32, "grid": (3,), "num_warps": 4, "num_stages": 2}
    )
    rows, step = compiler.INTS["i64"], compiler.INTS["i32"]
    assert 1 < step < 2**31 <= rows < 2**63


def test_cuda_programs_are_kept_for_their_loader(tmp_path, monkeypatch):
    pytest.importorskip("cuda.core")
    from fusebench.backends import cuda

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cuda._store.cache_clear()
    kernels = discovery.find_kernels(discovery.roots_of())
    module = discovery.load_implementation("softmax", "cuda")
    case = make_case(kernels["softmax"], "odd", "bfloat16")
    config = module.config(case, "row", H200)
    try:
        Compiler("cuda").do(protocol.CompileAhead(case, "cuda", "row", config, H200, ahead.target_of(H200).arch))
        monkeypatch.setattr(cuda, "_compile", None)  # whoever compiles now fails
        (launch,) = module.launches(case, "row", H200, config)
        assert cuda.compile_cubin(launch.program.file, "sm_90a", [launch.program.name], launch.program.defines).code
    finally:
        cuda._store.cache_clear()
