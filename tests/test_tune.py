"""`fusebench tune`: what is tried, what a bad config costs, what is kept, and what later runs make of it."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow.csv
import pytest
from conftest import FIXTURES
from stand_in import Pools, light_python

from fusebench import cases, discovery, inputs, provenance
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.commands import tune
from fusebench.comparison import pairs
from fusebench.configuration import jobs, schema
from fusebench.contract import Cell, Device
from fusebench.errors import StorageError
from fusebench.machine import DeviceInfo
from fusebench.records import store
from fusebench.records.record import Build, Record
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Samples
from fusebench.tuning import confirm, results, strategies, study
from fusebench.tuning.study import Found, Search
from fusebench.workers import configs, protocol
from fusebench.workers.pool import WorkerLost

BAD = ("crashes", "hangs", "fills", "wrong", "raises")


@pytest.fixture
def root(tmp_path):
    """A folder with the kernel `double` and the implementation with planted configs, which tuned.json may be written to."""
    folder = tmp_path / "kernels" / "double"
    folder.mkdir(parents=True)
    shutil.copy(FIXTURES / "kernels" / "double" / "kernel.py", folder)
    shutil.copy(FIXTURES / "planted_configs" / "double" / "torch_planted.py", folder)
    return folder.parent


# The public path, with workers that load no framework


@pytest.fixture
def tuned(root, tmp_path, monkeypatch, capfd):
    """A function that runs a command on that kernel: exit code, what it printed and told on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words, command="tune"):
        own = [] if any(w.startswith("resume=") for w in words) else [
            f"path={root}", "kernel=double", "implementation=torch_planted", "device=cpu", "threads=1", "inputs=plain",
            f"worker.python.torch={light_python(tmp_path)}", *(["time_s=0.005"] if command == "tune" else []),
        ]  # fmt: skip
        return main([command, *own, *words]), *capfd.readouterr()

    return run


def last(folder):
    """The records of the latest run."""
    return store.read(max(folder.glob("results/*"), key=lambda run: run.name), Record)


def test_the_winner_is_kept_and_later_runs_take_it(tuned, root, tmp_path):
    out = tmp_path / "all.csv"
    words = ("config.NUMBER=[0,2]", "config.how=[right,wrong,misfit]", "confirm=false", f"out={out}")
    code, printed, told = tuned(*words)
    assert code == 0, told
    assert "6 configs: 4 fit; 4 tried: 2 ok, 2 wrong" in printed and "2 × does not fit  it says so itself" in printed
    assert "kept: NUMBER=0 how=right: not confirmed by pairs of processes" in printed
    rows = pyarrow.csv.read_csv(out).to_pylist()
    assert [(r["config.NUMBER"], r["config.how"]) for r in rows[:2]] == [(0, "right"), (2, "right")], (
        "the fastest first"
    )
    assert [r["status"] for r in rows] == ["ok", "ok", "wrong", "wrong", "skipped", "skipped"]
    assert [r["is_default"] for r in rows] == [False, True, False, False, False, False]
    (group,) = json.loads((root / "double" / "tuned.json").read_text())
    (entry,) = group["entries"]
    assert entry["config"] == {"NUMBER": 0, "how": "right"} and entry["time_s"] < entry["default_s"]
    assert list(group["files"]) == ["double/torch_planted.py"], "kernel.py may get new cases"

    before = len(last(tmp_path))
    assert tuned("resume=latest")[0] == 0 and len(last(tmp_path)) == before, "nothing is run twice"

    assert tuned("shape.N=140", command="parity")[0] == 0
    build = last(tmp_path)[-1].build
    assert (build.config_from, build.config["NUMBER"], build.config_note) == ("tuned", 0, "tuned at N=100")


def test_the_steps_of_an_experiment_are_studies_of_one_run(tmp_path, capsys):
    presets = tmp_path / "experiment"
    presets.mkdir()
    steps = (
        "    - {step: a, kernel: softmax, case: square, implementation: ['triton:row', torch_eager], dtype: float32, config: {ROWS: [1, 2], num_warps: 4}}\n"
        "    - {step: b, kernel: padded_attention, case: wide, implementation: cuda, dtype: bfloat16, mode: backward, config: {queries_BLOCK_M: 64}}\n"
    )
    (presets / "two.yaml").write_text("# @package _global_\nstory:\n  steps:\n" + steps)
    assert main(["tune", f"--config-dir={tmp_path}", "experiment=two", "device=cpu", "dry_run=true"]) == 0
    said = capsys.readouterr().out
    assert "softmax square/float32 triton:row  2 configs: 2 fit" in said
    assert "cuda:whole_row  skipped  computes forward alone" in said, "a reason of the mode holds for every device"


def test_what_needs_no_pairs_is_saved_when_the_pairs_are_interrupted(tuned, root, tmp_path, monkeypatch):
    """The default, NUMBER=2, is slower than 0 and faster than 3: of two studies one is contested."""

    def cut_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(confirm, "run_pairs", cut_off)
    (tmp_path / "experiment").mkdir()
    steps = (
        "    - {step: contested, implementation: torch_planted, shape: {N: 100}, config: {NUMBER: [0, 2], how: right}}\n"
        "    - {step: settled, implementation: torch_planted, shape: {N: 150}, config: {NUMBER: [2, 3], how: right}}\n"
    )
    (tmp_path / "experiment" / "two.yaml").write_text("# @package _global_\nstory:\n  steps:\n" + steps)
    code, printed, told = tuned(f"--config-dir={tmp_path}", "experiment=two")
    assert code == 130 and "4 configs" in told and "1 config saved in " in printed
    (entry,) = json.loads((root / "double" / "tuned.json").read_text())[0]["entries"]
    assert entry["sizes"] == {"N": 150} and entry["config"] == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kernel=null"], "tune needs kernel=, such as kernel=lola"),
        (["strategy=best"], "unknown strategy 'best'. There are: grid, optuna, random"),
        (
            ["strategy=optuna", "trials=5", "arch=sm_90a"],
            "strategy=optuna with arch=sm_90a: it chooses by times, and arch= times nothing; expected strategy=grid or",
        ),
        (["trials=0"], "trials is 0: expected a positive integer"),
        (
            ["pairs=4"],
            "pairs=4: expected 5 or more, as fewer have no interval and so never confirm a config; confirm=false keeps the fastest without pairs",
        ),
        (["pairs=0", "confirm=false"], "pairs is 0: expected a positive integer"),
        (["worker=inline"], "worker=inline: a config may crash or hang"),
        (["out=all.txt"], "out=all.txt: expected a file that ends in .csv, .json, .parquet"),
        (["out=none/all.csv"], "out=none/all.csv: expected a file that can be written, in a folder that is there"),
        ([f"out={__file__}/all.csv"], "all.csv: expected a file that can be written, in a folder that is there"),
        (
            ["heatmap=none/map.svg"],
            "heatmap=none/map.svg: expected a file that can be written, in a folder that is there",
        ),
        (["heatmap=map.png"], "heatmap=map.png: expected a file that ends in .svg"),
        (["config.NUMBRE=1"], "unknown tunable 'NUMBRE' of double: did you mean NUMBER?"),
        (["config.NUMBER=many"], "config.NUMBER is 'many': expected a value such as 0, 1"),
        (["config.NUMBER=[]"], "config.NUMBER=[] chooses nothing"),
        (["compile_timeout_s=0"], "compile_timeout_s is 0.0: expected a number of seconds above 0"),
    ],
)
def test_what_cannot_be_tuned_is_answered_by_one_line(tuned, tmp_path, words, said):
    code, _, told = tuned(*words)
    assert code == 2 and said in told and len(told.splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("arch=sm_90a", "heatmap=map.svg with arch=sm_90a: it draws times, and arch= times nothing; leave one out"),
        (
            "config.how=right",
            "heatmap=map.svg: expected a study with two tunables of several values each, and double small/float32 "
            "torch_planted has NUMBER: leave it out, or set values by config.NAME=[…]",
        ),
    ],
)
def test_a_heat_map_that_cannot_be_is_refused_before_the_search(tuned, tmp_path, word, said):
    pytest.importorskip("matplotlib")
    code, _, told = tuned("heatmap=map.svg", word)
    assert code == 2 and told == f"fusebench: {said}\n" and not (tmp_path / "results").exists()


def test_a_refused_search_is_none_to_go_on_with(tuned, tmp_path):
    assert tuned("config.NUMBER=[2,3]", "config.how=right", "confirm=false", "save=false")[0] == 0
    (before,) = (tmp_path / "results").iterdir()
    assert tuned("config.how=misfit", "config.NUMBER=[0,1]")[0] == 2
    assert tuned("config.how=misfit", "config.NUMBER=[0,1]", "out_dir=mine")[0] == 2
    assert [*(tmp_path / "results").iterdir()] == [before] and not (tmp_path / "mine" / "tune.yaml").exists()
    code, _, told = tuned("resume=latest")
    assert code == 0, told


def test_an_implementation_without_tunables_is_named(tuned, root):
    shutil.copy(FIXTURES / "kernels" / "double" / "torch_eager.py", root / "double")
    code, _, told = tuned("implementation=torch_eager")
    assert code == 2 and "double torch_eager:plus, torch_eager:times: no TUNABLES" in told.replace(
        "double torch_eager:times", "torch_eager:times"
    )


def test_optuna_that_is_missing_is_named_before_anything_runs(tuned, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, told = tuned("strategy=optuna")
    assert code == 2 and told.startswith("fusebench: strategy=optuna needs optuna: pip install optuna")
    assert not (tmp_path / "results").exists()


def test_a_space_of_which_nothing_fits_is_answered_by_one_line(tuned, tmp_path):
    code, _, told = tuned("config.how=misfit", "config.NUMBER=[0,1]")
    assert code == 2 and len(told.splitlines()) == 1
    assert "none of 2 configs fits: it says so itself, as the first one; config.X= sets other values" in told


def test_what_is_never_timed_here_is_not_tuned(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    code = main(["tune", "kernel=softmax", "implementation=triton:row", "case=odd", "device=cpu"])
    told = capfd.readouterr().err
    assert code == 2 and "nothing to tune here: softmax odd/float32 triton:row: interpreted on the CPU" in told


def test_a_dry_run_says_how_many_fit_and_leaves_nothing(tuned, tmp_path):
    code, printed, _ = tuned("config.NUMBER=[0,1,2]", "dry_run=true")
    assert (
        code == 0
        and "torch_planted  21 configs: 18 fit" in printed
        and "3 × does not fit  it says so itself" in printed
    )
    assert not (tmp_path / "results").exists()


# Planted configs, with a worker in this process


class PlantedPool:
    """In the place of a pool: one worker that does what a config's `how` says, as the real one reports it. `built` are the configs that
    it was asked to build."""

    def __init__(self, implementation):
        self.implementation, self.rates, self.built, self.dropped = implementation, {}, [], 0
        self.info = protocol.WorkerInfo(DeviceInfo("cpu", "stand-in"), {}, "3", ())
        self.held_bytes, self.used = 0, False

    def start(self, *key): ...

    def get(self, first, *more, beside=False):
        return self if isinstance(first, str) else self.ask(first, *more)

    def drop(self, *key):
        self.dropped += 1

    def ask(self, request, expected, timeout_s):
        if isinstance(request, protocol.AskFits):
            module = discovery.load_implementation("double", self.implementation.name)
            return configs.fitting(module, self.implementation, request, Device("cpu", "stand-in"))
        if isinstance(request, protocol.BuildCell):
            self.config, self.sets = request.config, request.sets
            self.built.append(dict(request.config))
            how = request.config.get("how", "right")
            if how == "crashes":
                raise WorkerLost("crashed", "killed by SIGSEGV")
            if how == "hangs":
                raise WorkerLost("timeout", "no answer")
            if how == "fills":
                return protocol.Refused("failed", "OutOfMemoryError: CUDA out of memory")
            if how == "raises":
                return protocol.Refused(
                    "failed", "CompilationError: at 3:4: incompatible dimensions at index 0: 32 and 64"
                )
            return protocol.Built(Build(0.0, 0.1, 0, 400, ("output",), request.config), self.outputs(request, 0))
        if isinstance(request, protocol.RepeatCell):
            return protocol.Repeated(None, self.outputs(request, -1))
        if isinstance(request, protocol.TimeCell):
            median = 1e-3 * (1 + self.config["NUMBER"])
            return protocol.Timed(Samples("wall", Plan(regime="isolated", cache="warm"), [median] * 6).summary())
        if isinstance(request, protocol.Release):
            return protocol.Released()
        raise WorkerLost("failed", "no yardsticks here")

    get_reply = ask

    def outputs(self, request, set_):
        (x,) = inputs.load(self.sets[set_], Path(request.folder))
        factor = 3 if self.config.get("how") == "wrong" else 2
        return tuple(inputs.save([factor * x], Path(request.folder), f"out{len(self.built)}-{set_}"))


@pytest.fixture
def planted(root, tmp_path):
    """The run, a pool with planted configs, and a function that makes the study of some values."""
    kernels = discovery.find_kernels([root])
    this = Run(kernels, [root], tmp_path / "run", Settings("cpu", Plan(0.01)))
    pool = PlantedPool(kernels["double"].implementations["torch_planted"])

    def found(**space):
        cell = Cell(make_case(kernels["double"], "small"), "torch_planted", "default")
        one = study.Study(cell, space)
        return Found(one, study.ask_fits(this, pool, one, Search("grid", None, 0)))

    return this, pool, found


def test_a_hundred_bad_configs_cost_no_other_row(planted):
    this, pool, found = planted
    one = found(NUMBER=tuple(range(20)), how=("right", *BAD, "misfit"))
    records = list(study.run(this, pool, one, Search("grid", None, 0)))
    assert len(one.fits.misfits) == 20 and len(records) == 120
    by_how = {how: [r for r in records if r.cell.config["how"] == how] for how in ("right", *BAD)}
    assert {how: {r.status for r in own} for how, own in by_how.items()} == {
        "right": {"ok"}, "crashes": {"crashed"}, "hangs": {"timeout"}, "fills": {"failed"}, "wrong": {"wrong"}, "raises": {"failed"},
    }  # fmt: skip
    assert all(len(own) == 20 for own in by_how.values()) and all(r.reason for how in BAD for r in by_how[how])
    assert pool.dropped >= 40, "a worker that was lost is replaced"
    assert [r.cell.config["NUMBER"] for r in one.ranked] == list(range(20))
    assert store.read(this.folder, Record) == records, "each is on disk"
    assert results.frame([one]).num_rows == 140


@pytest.mark.parametrize("strategy", ["grid", "random", "optuna"])
def test_a_search_that_was_cut_off_runs_nothing_twice(planted, strategy):
    if strategy == "optuna":
        pytest.importorskip("optuna")
    this, pool, found = planted
    space = {"NUMBER": (0, 1, 2, 3, 4), "how": ("right", "crashes", "misfit")}
    search = Search(strategy, 8, seed=3)
    whole = found(**space)
    list(study.run(this, pool, whole, search))
    order, pool.built = pool.built, []
    assert len(order) == 8 and order[0] == {"NUMBER": 2, "how": "right"}, "the default first"
    (this.folder / store.FILE).unlink()

    first = study.run(this, pool, found(**space), search)
    while len(pool.built) < 5:
        next(first)
    first.close()
    again = found(**space)
    again.records = {strategies.key(r.cell.config): r for r in store.read(this.folder, Record)}
    list(study.run(this, pool, again, search))
    assert pool.built == order, "the same search, in two parts"


def test_a_config_of_which_no_worker_says_that_it_fits_is_not_tried(planted, monkeypatch):
    """Of a large space some are drawn, and Optuna asks for others."""
    pytest.importorskip("optuna")
    monkeypatch.setattr(study, "MOST", 4)
    this, pool, found = planted
    one, ask, search = found(NUMBER=tuple(range(8)), how=("right",)), pool.ask, Search("optuna", None, 0)
    one.fits = study.ask_fits(this, pool, one.study, search)

    def answer(request, *more):
        if isinstance(request, protocol.AskFits):
            raise WorkerLost("crashed", "it is gone")
        return ask(request, *more)

    monkeypatch.setattr(pool, "ask", answer)
    list(study.run(this, pool, one, search))
    drawn = [config["NUMBER"] for config in one.fits.fitting]
    assert len(drawn) == 4 and pool.dropped and {c["NUMBER"] for c in pool.built} == {one.default["NUMBER"], *drawn}


@pytest.mark.parametrize(
    ("strategy", "trials", "tried"),
    [("grid", None, [2, 7, 8]), ("random", None, [2, 7, 8]), ("random", 3, [2, 7, 8]), ("grid", 2, [2, 7]), ("grid", 9, [2, 7, 8])],
)  # fmt: skip
def test_the_default_that_the_space_leaves_out_takes_no_place_of_another(planted, strategy, trials, tried):
    this, pool, found = planted
    one, search = found(NUMBER=(7, 8), how=("right",)), Search(strategy, trials, 0)
    assert search.budget(one.fits) == len(tried) == len(study._planned(one, search, 1))
    list(study.run(this, pool, one, search))
    assert sorted(r.cell.config["NUMBER"] for r in one.records.values()) == tried
    assert confirm.settled([one], search), "it came to its end, and the default was the fastest"


def test_the_config_that_was_asked_for_runs_beside_a_default_that_was_not(tuned):
    code, printed, told = tuned("config.NUMBER=[7]", "config.how=right", "confirm=false", "save=false")
    assert code == 0 and "1 configs: 1 fit; 2 tried: 2 ok" in printed, told


def test_with_fits_false_what_does_not_fit_is_tried_and_not_saved(tuned, root, tmp_path):
    words = ("config.NUMBER=0", "config.how=[misfit,wrong]", "confirm=false", "out=all.csv")
    code, printed, told = tuned(*words, "fits=false")
    assert code == 0 and "2 configs: 1 fit; 3 tried: 2 ok, 1 wrong" in printed and "1 × does not fit" not in printed, (
        told
    )
    rows = pyarrow.csv.read_csv(tmp_path / "all.csv").to_pylist()
    assert [(r["config.how"], r["status"], r["tried"]) for r in rows] == [
        ("misfit", "ok", True), ("right", "ok", True), ("wrong", "wrong", True),
    ]  # fmt: skip
    assert "torch_planted: not saved, as later runs take no config that does not fit: it says so itself\n" in printed
    assert not (root / "double" / "tuned.json").exists()
    again = {r.cell.config["how"]: r for r in last(tmp_path)}
    assert again["misfit"].build.config_note == "does not fit: it says so itself (NUMBER=0, how=misfit)"
    assert "fits=false" in again["wrong"].reproduce and not again["right"].build.config_note
    assert "1 fit; 2 tried: 1 ok, 1 wrong" in tuned(*words)[1]


@pytest.mark.parametrize("strategy", ["grid", "random", "optuna"])
def test_with_fits_false_every_strategy_tries_all(planted, strategy):
    if strategy == "optuna":
        pytest.importorskip("optuna")
    this, pool, found = planted
    one, search = found(NUMBER=(0, 1, 2), how=("misfit", "right")), Search(strategy, None, 0, fits=False)
    assert search.budget(one.fits) == 6 == len(study._planned(one, search, 1)) and len(one.untried) == 3
    list(study.run(this, pool, one, search))
    assert len(one.records) == 6 and not one.untried
    if strategy == "grid":
        assert [c["how"] for c in pool.built] == ["right"] * 3 + ["misfit"] * 3, "what may kill comes last"


def test_a_full_disk_ends_the_search(planted, monkeypatch):
    this, pool, found = planted

    def full(*_):
        raise StorageError("no space")

    monkeypatch.setattr(store, "append", full)
    with pytest.raises(StorageError):
        list(study.run(this, pool, found(NUMBER=(0, 1), how=("right",)), Search("grid", None, 0)))


# What is kept


@pytest.fixture
def decided(planted, monkeypatch):
    """A function from the seconds of configs in pairs of processes, by NUMBER, to the decision; single runs say 1 ms, 2 ms, …"""
    this, pool, found = planted

    def decide(times, default_how="right"):
        one = found(NUMBER=tuple(range(len(times))), how=("right",))
        list(study.run(this, pool, one, Search("grid", None, 0)))
        asked = []

        def plan(side, number, do, turn):
            if do == "build":
                asked.append(pools.messages[-1][2].config["NUMBER"])
                pools.numbers[side] = asked[-1]
            return {"median": times[pools.numbers[side]]} if do == "time" else None

        pools = Pools(plan)
        pools.numbers = {}
        monkeypatch.setattr(pairs, "Pool", pools)
        (decision,) = confirm.decide(this, [one], confirm.PairPlan(5, 1, 0.99), lambda match: None)
        return decision.kept.cell.config["NUMBER"], decision.is_default, len(decision.outcomes), decision

    return decide


def test_a_config_that_is_surely_faster_is_kept(decided):
    number, is_default, comparisons, decision = decided([1.0, 1.5, 2.0])
    assert (number, is_default, comparisons) == (0, False, 2)
    assert decision.why == "50.0% faster than the default in 5 pairs" and (decision.time_s, decision.default_s) == (
        1.0,
        2.0,
    )


def test_pairs_are_judged_at_the_confidence_that_is_asked_for(decided, monkeypatch):
    seen, outcome = [], confirm.verdicts.outcome
    monkeypatch.setattr(
        confirm.verdicts,
        "outcome",
        lambda match, confidence, *more: (seen.append(confidence), outcome(match, confidence, *more))[1],
    )
    decided([1.0, 1.5, 2.0])
    assert set(seen) == {0.99}


def test_pairs_on_record_are_made_again_once_a_file_has_changed(decided, root):
    assert decided([1.0, 1.5, 2.0])[:2] == (0, False) == decided([9.0, 9.0, 1.0])[:2]
    file = root / "double" / "torch_planted.py"
    file.write_text(file.read_text() + "# another one\n")
    assert decided([9.0, 9.0, 1.0])[:2] == (2, True)


def test_a_tie_keeps_the_default(decided):
    number, is_default, _, decision = decided([1.0, 1.0, 1.01])
    assert (number, is_default) == (2, True) and "not surely faster in pairs of processes (same)" in decision.why
    assert (decision.time_s, decision.default_s) == (1.01, 1.01), "that of the config which is kept"


def test_a_runner_up_that_wins_the_pairs_takes_the_place_of_the_fastest(decided):
    number, is_default, comparisons, _ = decided([1.5, 1.0, 2.0])
    assert (number, is_default, comparisons) == (1, False, 3)


def test_the_default_that_was_fastest_is_kept_without_pairs(planted):
    this, pool, found = planted
    one = found(NUMBER=(2, 3), how=("right",))
    list(study.run(this, pool, one, Search("grid", None, 0)))
    (decision,) = confirm.decide(this, [one], confirm.PairPlan(5, 1, 0.99), None)
    assert decision.is_default and decision.why == "no config was faster" and confirm.entry(decision, this).config == {}


def test_a_config_that_is_hardly_faster_is_a_tie_without_pairs(planted):
    this, pool, found = planted
    one = found(NUMBER=(2, 1), how=("right",))
    list(study.run(this, pool, one, Search("grid", None, 0)))
    first = one.ranked[0]
    timing = replace(first.timing, median=one.ranked[1].timing.median / 1.01)
    one.records[strategies.key(first.cell.config)] = replace(first, timing=timing)
    (decision,) = confirm.decide(this, [one], confirm.PairPlan(5, 1, 0.99), None)
    assert decision.is_default and decision.why == "the fastest config is 1.0% faster: a tie"


def test_the_processes_of_a_pair_serve_all_studies(planted, monkeypatch):
    this, pool, found = planted
    two = [found(NUMBER=(0, 2), how=("right",)), found(NUMBER=(1, 2), how=("right",))]
    two[1].study = replace(two[1].study, cell=replace(two[1].study.cell, seed=1))
    for one in two:
        list(study.run(this, pool, one, Search("grid", None, 0)))
    pools = Pools()
    monkeypatch.setattr(pairs, "Pool", pools)
    decisions = confirm.decide(this, two, confirm.PairPlan(5, 1, 0.99), lambda match: None)
    assert [d.found for d in decisions] == two and [d.why for d in decisions] == [
        "the fastest config is not surely faster in pairs of processes (same)"
    ] * 2
    assert len(pools.made) == 1 + 2 * 5, "the judges', and two for each pair"


def test_a_search_that_has_not_come_to_its_end_settles_nothing(planted):
    this, pool, found = planted
    one, search = found(NUMBER=(2, 3), how=("right",)), Search("grid", None, 0)
    first = study.run(this, pool, one, search)
    assert next(first).cell.config["NUMBER"] == 2, "the default"
    first.close()
    assert confirm.settled([one], search) == []
    list(study.run(this, pool, one, search))
    assert [decision.why for decision in confirm.settled([one], search)] == ["no config was faster"]


def test_a_study_without_a_time_keeps_nothing(planted):
    this, pool, found = planted
    one = found(NUMBER=(0, 1), how=("wrong",))
    list(study.run(this, pool, one, Search("grid", 1, 0)))
    one.records = {k: r for k, r in one.records.items() if r.status != "ok"}
    assert confirm.decide(this, [one], confirm.PairPlan(5, 1, 0.99), None) == []


def test_the_exit_code_is_that_of_studies_without_a_time(planted, tmp_path):
    this, pool, found = planted
    list(study.run(this, pool, found(NUMBER=(2,), how=("right", "crashes")), Search("grid", None, 0)))
    assert tune._code_of(this.folder) == 0, "a config that crashes is a finding, not a failure"
    one = provenance.new_record(Cell(make_case(this.kernels["double"], "odd"), "torch_planted", "default"), "cpu")
    store.append(this.folder, replace(one, status="wrong"))
    assert tune._code_of(this.folder) == 1


def test_the_heat_map_has_the_best_time_at_each_pair_of_values(planted, tmp_path):
    this, pool, found = planted
    one = found(NUMBER=(0, 3, 1), how=("right", "wrong"))
    list(study.run(this, pool, one, Search("grid", None, 0)))
    assert results.axes_of(one) == ["NUMBER"]
    xs, ys, times = results.grid_of(one, "NUMBER", "how")
    assert (xs, ys, times) == ([0, 1, 2, 3], ["right"], [[0.001, 0.002, 0.003, 0.004]])


def test_the_heat_map_is_an_svg(planted, tmp_path):
    pytest.importorskip("matplotlib")
    this, pool, found = planted
    one = found(NUMBER=(0, 3), how=("right", "wrong"))
    list(study.run(this, pool, one, Search("grid", None, 0)))
    for record in list(one.records.values()):  # as if `wrong` had a time as well
        other = replace(record, status="ok", cell=replace(record.cell, config={**record.cell.config, "how": "wrong"}))
        if record.timing:
            one.records[strategies.key(other.cell.config)] = other
    one.records = {k: r for k, r in one.records.items() if r.timing}
    results.draw([one], tmp_path / "map.svg")
    assert "<svg" in (tmp_path / "map.svg").read_text()
    tune._write([one], {"out": None, "heatmap": str(tmp_path / "asked.svg")}, drawn=True)
    assert "<svg" in (tmp_path / "asked.svg").read_text()
    tune._write([one], {"out": None, "heatmap": str(tmp_path / "not.svg")}, drawn=False)
    assert not (tmp_path / "not.svg").exists()


def test_a_heat_map_of_nothing_ends_no_search(tuned, root, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("config.NUMBER=[0,2]", "config.how=[right,wrong]", "confirm=false", "pairs=1", "heatmap=map.svg")
    code, printed, told = tuned(*words)
    assert code == 0 and not (tmp_path / "map.svg").exists()
    assert told.splitlines()[-1] == (
        "fusebench: heatmap=map.svg: no study has times at several values of two tunables: nothing is drawn"
    )
    assert "1 config saved in " in printed and "wall time " in printed and "records: " in printed


def test_what_is_in_hand_is_shown_with_the_best_time_so_far(planted):
    this, pool, found = planted
    one = found(NUMBER=(0, 3), how=("right",))
    bar = SimpleNamespace(said=[])
    bar.update = lambda task, description: bar.said.append((task, description))
    show = tune._on_phase(bar, 7, one, 3)
    show(None, "compile")
    list(study.run(this, pool, one, Search("grid", None, 0)))
    show(None, "timing")
    best, *others = sorted(r.timing.median for r in one.records.values())
    assert others and bar.said == [
        (7, f"{one.study.name}: 0 of 3 configs, compile"),
        (7, f"{one.study.name}: 3 of 3 configs, best {round(best * 1e3)} ms, timing"),
    ]


# The published sweeps


@pytest.fixture(scope="module")
def own_kernels():
    found = discovery.find_kernels(discovery.roots_of())
    return {name: found[name] for name in ("lola", "splacc")}


@pytest.mark.parametrize(
    ("preset", "configs_of"),
    [("lola_grid", 216), ("lola_warps", 49), ("lola_row", 25), ("lola_row_warps", 8), ("lola_batched_row", 36), ("splacc_grid", 64),
     ("lola_columns_rows", 25), ("lola_tunables", 3456)],
)  # fmt: skip
def test_a_preset_has_the_configs_of_its_published_sweep(own_kernels, preset, configs_of):
    schema.register("tune", own_kernels)
    chosen = jobs.compose_job("tune", [f"experiment=published_{preset}"])
    found = study.studies(own_kernels, cases.select_cells(own_kernels, chosen))
    own = [
        name for name, values in chosen["config"].items() if values is not None
    ]  # others are those of backward modes
    assert found and all(math.prod(len(one.space[name]) for name in own) == configs_of for one in found)
    assert not chosen["fits"], "what does not fit ran when it was published"


@pytest.mark.parametrize("preset", ["lola_grid", "lola_warps", "lola_columns_rows", "lola_tunables"])
def test_published_sweeps_sum_in_float32_and_in_float16_with_the_configs_that_killed_them(own_kernels, preset):
    schema.register("tune", own_kernels)
    chosen = jobs.compose_job("tune", [f"experiment=published_{preset}"])
    found = study.studies(own_kernels, cases.select_cells(own_kernels, chosen))
    variants = {one.cell.variant for one in found}
    assert {v.endswith("_f16acc") for v in variants} == {True, False}
    if preset == "lola_grid":
        killer = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 256}
        assert all(value in one.space[name] for one in found for name, value in killer.items())
