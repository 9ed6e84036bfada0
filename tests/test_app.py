"""`bench` and `parity` from the command line to the last line, with cells that take no time: what runs, what is kept, what a run that
goes on repeats, and the exit code."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml
from conftest import FIXTURES
from omegaconf import OmegaConf
from samples import CPU, parity, table_of, timed, untimed

from fusebench import discovery, provenance
from fusebench.cli import main
from fusebench.commands import app
from fusebench.configuration import command_line, request, values
from fusebench.errors import StorageError, UsageError
from fusebench.records import store
from fusebench.records.record import Parity, Record
from fusebench.settings import Settings
from fusebench.timing.plan import Plan

FAULTS = FIXTURES / "faults"
ROOTS = discovery.roots_of([FAULTS])
KERNELS = discovery.find_kernels([FAULTS])  # alone: Hydra takes longer the more dimensions there are


class Runs:
    """Stands in for `run`: every cell is done at once, as `statuses` say in turn, and remembered; an exception ends the run."""

    def __init__(self):
        self.runs, self.statuses, self.timed, self.source = [], itertools.repeat("ok"), True, None

    def __call__(self, this, cells):
        self.runs.append((this, list(cells)))
        for cell in cells:
            this.on_phase(cell, "compile")
            status = next(self.statuses)
            if isinstance(status, BaseException):
                raise status
            of = {"of": cell.case, "seed": cell.seed, "inputs": cell.inputs, "device": CPU}
            if status == "ok" and self.timed:
                how = {"regime": "isolated", "cache": "warm"}
                record = timed(cell.label, rates=None, work=(0, 10**6), how=how, **of)
            else:
                reason = None if status == "ok" else f"it is {status}"
                record = untimed(cell.label, status, reason=reason, parity=Parity(parity(0.5)), **of)
            record = replace(record, source=self.source)
            store.append(this.folder, record)
            yield record

    @property
    def cells(self):
        """What each run was asked for."""
        return [[c.id for c in cells] for _, cells in self.runs]


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake = Runs()
    monkeypatch.setattr(app, "run", fake)
    monkeypatch.setattr(discovery, "find_kernels", lambda roots, broken=None: KERNELS)
    return fake


def job(command="bench", resumed=None, home=Path("results/it"), **chosen):
    """One job without Hydra: its exit code."""
    defaults = {
        "kernel": "fault", "implementation": ["a_fine", "z_fine"], "case": "odd", "dtype": "float32", "precision": "ieee", "batch": None,
        "shapes": None, "device": "cpu", "path": None, "seed": 0, "rows_seed": None, "inputs": "plain", "published": False, "timeout_s": 300.0, "threads": None, "resume": None,
        "retry": None, "config": {}, "shape": {}, "option": {}, "worker": {"inline": False, "python": {}},
    }  # fmt: skip
    if command == "bench":
        defaults |= {"time_s": 0.5, "target": 0.01, "regime": "auto", "cache": "auto"}
    composed = defaults | chosen
    if resumed:
        composed = app._resume(resumed, OmegaConf.create(composed))
    return app._run(request.build(command, ROOTS, composed, KERNELS), home, KERNELS, resumed is not None)


def test_jobs_of_bench_and_parity_end_with_a_table_of_all(monkeypatch):
    asked = []
    monkeypatch.setattr(app, "start", lambda *arguments: asked.append(arguments[-1]) or 0)
    monkeypatch.setattr(app.show, "show_sweep", lambda folders: f"all of {folders}")
    for of_another_kind in ({}, {"run_job": job}):
        app.run_app("bench", [], **of_another_kind)
    assert [show(["a", "b"]) for show in asked] == ["all of ['a', 'b']", None]


# One run


def test_a_run_from_the_command_line_to_the_last_line(runs, capsys):
    code = main(
        ["bench", f"path={FAULTS}", "kernel=fault", "implementation=[a_fine,z_fine]", "case=odd", "time_s=0.25", "target=0.5", "regime=sustained",
         "cache=warm", "timeout_s=7", "threads=1", "device=cpu", "worker=inline", "worker.python.torch=python3", "seed=[3,4]", "inputs=nan"]
    )  # fmt: skip
    assert code == 0
    ((this, cells),) = runs.runs
    assert [c.id for c in cells] == [
        f"fault/odd/float32/{i}/seed={s}/inputs=nan" for s in (3, 4) for i in ("a_fine", "z_fine")
    ]
    settings = this.settings
    assert (settings.device, settings.plan) == ("cpu", Plan(0.25, 0.5, "sustained", "warm"))
    assert (settings.timeout_s, settings.threads, settings.inline, settings.pythons["torch"]) == (
        7.0,
        1,
        True,
        "python3",
    )
    assert this.roots == ROOTS and this.kernels is KERNELS
    (home,) = Path("results").iterdir()
    assert this.folder.resolve() == home.resolve()
    kept = yaml.safe_load((home / "bench.yaml").read_text())
    assert (kept["seed"], str(kept["inputs"]), kept["device"], kept["path"]) == ([3, 4], "nan", "cpu", str(FAULTS))
    out = capsys.readouterr().out
    assert (
        "\nfault  odd/float32  N=7  nan inputs  on some CPU  isolated, warm caches\n" in out
        and out.count("CPU time") == 2
    )
    assert table_of(out, "implementation")[1]["implementation"] == "z_fine"
    *_, counts, wall, where = out.splitlines()
    assert counts == "4 cells: 4 ok" and re.match(r"wall time \d+\.\d s: start-up 0\.0 s", wall)
    assert where == f"records: {this.folder}/records.jsonl"


def test_parity_from_the_command_line(runs, capsys):
    runs.timed = False
    assert main(["parity", f"path={FAULTS}", "kernel=fault", "implementation=a_fine"]) == 0
    ((this, cells),) = runs.runs
    assert (
        this.settings.plan == Plan(time_s=0)
        and [c.case.id for c in cells] == ["odd/float32"]
        and this.settings.timeout_s == 300
    )
    assert table_of(capsys.readouterr().out, "implementation")[0]["error/budget"] == "0.5"
    assert [f.name for f in Path("results").glob("*/*.yaml")] == ["parity.yaml"]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["ok", "ok"], 0), (["ok", "skipped"], 0), (["skipped", "skipped"], 0), (["wrong", "ok"], 1), (["ok", "failed"], 1), (["ok", "crashed"], 1),
        (["timeout", "ok"], 1), (["implausible", "skipped"], 1),
    ],
)  # fmt: skip
def test_the_exit_code_follows_from_the_records(runs, capsys, statuses, code):
    runs.statuses = iter(statuses)
    assert job() == code
    total = ", ".join(
        f"{n} {s}"
        for s in ("ok", "skipped", "wrong", "failed", "crashed", "timeout", "implausible")
        if (n := statuses.count(s))
    )
    assert f"2 cells: {total}\n" in capsys.readouterr().out


def test_each_command_shows_its_own_table(runs, capsys):
    job("bench", home=Path("results/a"))
    out = capsys.readouterr().out
    assert "CPU time" in out and "max |error|" not in out
    runs.timed = False
    job("parity", home=Path("results/b"))
    out = capsys.readouterr().out
    assert "max |error|" in out and "CPU time" not in out


def test_the_wall_time_is_that_of_the_whole_job(runs, capsys, monkeypatch):
    ticks = itertools.count(100.0, 40.0)
    monkeypatch.setattr(app.time, "perf_counter", lambda: next(ticks))
    job()
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("wall time"))
    assert line.startswith("wall time 40.0 s: ") and line.endswith(", other 40.0 s")


# A run that is cut off goes on


def test_a_run_that_is_interrupted_goes_on_with_the_cells_that_are_left(runs, capsys):
    chosen = {"seed": [0, 1], "inputs": ["plain", "nan"], "case": ["odd", "small"]}
    runs.statuses = itertools.chain(["ok"] * 5, [KeyboardInterrupt()], itertools.repeat("ok"))
    assert job(**chosen) == 130
    captured = capsys.readouterr()
    assert captured.err == "interrupted: 5 of 16 cells on record; to go on: fusebench bench resume=results/it\n"
    assert "5 cells: 5 ok" in captured.out and table_of(captured.out, "implementation"), "what it has"
    first = store.read(Path("results/it"), Record)
    assert job(resumed=Path("results/it/bench.yaml")) == 0
    assert runs.cells[1] == runs.cells[0][5:], "neither a seed nor inputs nor a case is taken for another one's"
    after = store.read(Path("results/it"), Record)
    assert after[:5] == first and [r.id for r in after] == runs.cells[0]
    assert "16 cells: 16 ok" in capsys.readouterr().out, "the table has all of them"
    assert job(resumed=Path("results/it/bench.yaml")) == 0 and runs.cells[2] == []


def test_a_run_that_goes_on_ends_with_the_code_of_all_its_records(runs):
    runs.statuses = iter(["wrong", KeyboardInterrupt(), "ok"])
    assert job() == 130
    assert job(resumed=Path("results/it/bench.yaml")) == 1


def test_cells_of_the_named_statuses_run_again_and_their_last_records_count(runs, capsys):
    kept = Path("results/it/bench.yaml")
    runs.statuses = iter(["crashed", "ok", "wrong", "timeout", "crashed", "ok"])
    assert job(case=["odd", "small"]) == 1
    capsys.readouterr()
    assert job(resumed=kept, retry=["crashed", "timeout"]) == 1, "one crashed again, and one is wrong"
    a, b, c, d = runs.cells[0]
    assert runs.cells[1] == [a, d]
    assert [(r.id, r.status) for r in store.read(kept.parent, Record)] == [
        (a, "crashed"), (b, "ok"), (c, "wrong"), (d, "timeout"), (a, "crashed"), (d, "ok"),
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "4 cells: 2 ok, 1 wrong, 1 crashed" in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("fault")] == [
        "odd/float32",
        "small/float32",
    ]
    runs.statuses = itertools.repeat("ok")
    assert job(resumed=kept, retry="crashed") == 1 and runs.cells[2] == [a]
    assert job(resumed=kept, retry="wrong") == 0 and runs.cells[3] == [c]


def test_cells_that_run_again_are_counted_once_where_that_is_interrupted(runs, capsys):
    runs.statuses = iter(["crashed", "crashed", "ok", KeyboardInterrupt()])
    job()
    capsys.readouterr()
    assert job(resumed=Path("results/it/bench.yaml"), retry="crashed") == 130
    assert (
        capsys.readouterr().err == "interrupted: 2 of 2 cells on record; to go on: fusebench bench resume=results/it\n"
    )


def test_retry_needs_a_run_to_go_on_with_and_a_status():
    with pytest.raises(UsageError, match=r"^retry=crashed: it goes with resume=, which names the run"):
        job(retry="crashed")
    assert not Path("results").exists() and job() == 0
    with pytest.raises(UsageError, match="unknown status 'crash': did you mean crashed"):
        job(resumed=Path("results/it/bench.yaml"), retry="crash")


def test_a_run_goes_on_as_it_was_configured(runs):
    runs.statuses = itertools.chain([KeyboardInterrupt()], itertools.repeat("ok"))
    job(time_s=0.125, seed=7, rows_seed=3, worker={"inline": True, "python": {}}, device="cpu")
    job(resumed=Path("results/it/bench.yaml"), time_s=99.0, target=0.5)
    (first, cells), (second, again) = runs.runs
    assert second.settings == first.settings and again == cells and second.settings.plan.time_s == 0.125


def test_a_key_that_an_older_run_lacks_has_its_default(runs):
    home = Path("results/it")
    home.mkdir(parents=True)
    (home / "bench.yaml").write_text("seed: 5\n")
    assert job(resumed=home / "bench.yaml", target=0.25) == 0
    ((this, cells),) = runs.runs
    assert this.settings.plan.target == 0.25 and {c.seed for c in cells} == {5}
    assert (home / "bench.yaml").read_text() == "seed: 5\n", "what was kept stays"


def test_a_kept_configuration_of_another_kind_is_named(runs):
    home = Path("results/it")
    home.mkdir(parents=True)
    (home / "bench.yaml").write_text("worker: 3\nshape: ${nosuch}\n")
    with pytest.raises(UsageError, match=r"results/it/bench\.yaml is no configuration of this command|nosuch"):
        job(resumed=home / "bench.yaml")


def test_records_that_no_table_can_show_are_named_before_anything_runs(runs):
    home = Path("results/it")
    home.mkdir(parents=True)
    (home / "bench.yaml").write_text("seed: 0\n")
    timing = msgspec.to_builtins(timed()) | {"timing": {}}
    (home / store.FILE).write_text(json.dumps(timing) + "\n")
    with pytest.raises(UsageError, match=r"results/it/records\.jsonl line 1 is no record: .*`timer`.*`\$\.timing`"):
        job(resumed=home / "bench.yaml")
    assert not runs.runs


def test_resume_latest_on_the_command_line(runs, capsys):
    runs.statuses = itertools.chain(["ok", KeyboardInterrupt()], itertools.repeat("ok"))
    assert main(["bench", f"path={FAULTS}", "kernel=fault", "implementation=[a_fine,z_fine]", "case=odd"]) == 130
    capsys.readouterr()
    assert main(["bench", "--resume", "latest", "kernel=lola"]) == 2
    assert re.match(
        r"fusebench: resume=latest goes on with that run as it was configured: leave out kernel=lola\n$",
        capsys.readouterr().err,
    )
    assert main(["bench", "--resume"]) == 0
    assert runs.cells[1] == ["fault/odd/float32/z_fine/seed=0"] and len(list(Path("results").iterdir())) == 1
    assert runs.runs[1][0].folder.resolve() == runs.runs[0][0].folder.resolve()


def test_cells_of_a_file_that_has_changed_since_run_again(runs, capsys):
    runs.statuses = itertools.chain(["ok", KeyboardInterrupt()], itertools.repeat("ok"))
    file = KERNELS["fault"].implementations["a_fine"].file
    runs.source = provenance.source_of(file, {})
    job()
    capsys.readouterr()
    job(resumed=Path("results/it/bench.yaml"))
    assert "has changed" not in capsys.readouterr().err and [len(cells) for cells in runs.cells] == [2, 1]
    record, *others = (Path("results/it") / store.FILE).read_text().splitlines(keepends=True)
    digest = provenance.sources.digest(file)
    (Path("results/it") / store.FILE).write_text(record.replace(digest, "0" * 64) + "".join(others))
    job(resumed=Path("results/it/bench.yaml"))
    captured = capsys.readouterr()
    assert captured.err == "fault/a_fine.py has changed since one cell on record ran: it runs again\n"
    assert runs.cells[2] == ["fault/odd/float32/a_fine/seed=0"] and len(table_of(captured.out, "implementation")) == 2
    job(resumed=Path("results/it/bench.yaml"))
    assert not capsys.readouterr().err and not runs.cells[3], "the last record counts"


def test_files_that_have_changed_are_told_in_one_line(runs, capsys):
    runs.source = provenance.Source("f", "0", {"fault/kernel.py": "0"})
    job()
    runs.source = provenance.source_of(KERNELS["fault"].implementations["a_fine"].file, {})
    capsys.readouterr()
    job(resumed=Path("results/it/bench.yaml"))
    assert capsys.readouterr().err == "fault/kernel.py has changed since 2 cells on record ran: they run again\n"
    assert runs.cells[0] == runs.cells[1]


# Several jobs


def test_a_multirun_ends_with_the_largest_code_and_an_interrupt_ends_it_all(runs, capsys):
    arguments = ["bench", "-m", f"path={FAULTS}", "kernel=fault", "implementation=a_fine", "batch=1,2"]
    runs.statuses = iter(["failed", "ok"])
    assert main(arguments) == 1
    assert [c[0].case.sizes["N"] for _, c in runs.runs] == [1, 2]
    assert [f.parent.name for f in sorted(Path("results").glob("*/*/bench.yaml"))] == ["0", "1"]
    runs.runs.clear()
    runs.statuses = iter([KeyboardInterrupt(), "ok"])
    assert main(arguments) == 130 and len(runs.runs) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("interrupted: 0 of 2 jobs with records; to go on: fusebench bench resume=/")
    assert "0 cells: none" in captured.out


SWEEP = ("bench", "-m", f"path={FAULTS}", "kernel=fault", "implementation=[a_fine,z_fine]", "batch=1,2,3", "device=cpu")


def test_a_sweep_goes_on_with_the_cells_of_all_its_jobs(runs, capsys):
    """The second of three jobs was interrupted at its second cell."""
    runs.statuses = iter(["ok", "failed", "ok", KeyboardInterrupt()])
    assert main([*SWEEP]) == 130
    (sweep,) = Path("results").iterdir()
    captured = capsys.readouterr()
    more = f"to go on: fusebench bench resume={sweep.resolve()}\n"
    assert captured.err == f"interrupted: 2 of 3 jobs with records; {more}"
    assert "\nall 2 jobs\n" in captured.out and "3 cells: 2 ok, 1 failed" in captured.out.split("all 2 jobs")[1]
    runs.statuses, first = itertools.repeat("ok"), (sweep / "0" / store.FILE).read_text()
    runs.runs.clear()
    assert main(["bench", "resume=latest"]) == 1, "of all jobs, one cell of which has failed"
    assert [[c.label for c in cells] for _, cells in runs.runs] == [[], ["z_fine"], ["a_fine", "z_fine"]]
    assert [this.folder.resolve() for this, _ in runs.runs] == [(sweep / name).resolve() for name in "012"]
    assert capsys.readouterr().out.count("2 cells: ") == 3 and (sweep / "0" / store.FILE).read_text() == first
    runs.runs.clear()
    assert main(["bench", f"resume={sweep}", "retry=failed"]) == 0
    assert [[c.label for c in cells] for _, cells in runs.runs] == [["z_fine"], [], []]
    runs.runs.clear()
    assert main(["bench", f"resume={sweep}/1"]) == 0 and len(runs.runs) == 1, "one job alone"


def test_an_interrupt_between_two_jobs_shows_what_the_first_have(runs, capsys, monkeypatch):
    run_job, jobs = app._run, iter([False, False, True])

    def interrupted(*arguments):
        if next(jobs):
            raise KeyboardInterrupt
        return run_job(*arguments)

    monkeypatch.setattr(app, "_run", interrupted)
    assert main([*SWEEP]) == 130
    captured = capsys.readouterr()
    assert "all 2 jobs" in captured.out and "interrupted: 2 of 3 jobs with records; to go on: " in captured.err


def test_a_comparison_with_a_baseline_is_interrupted_before_its_first_cell(runs, capsys):
    assert (
        main([*(arguments := ["bench", f"path={FAULTS}", "kernel=fault", "implementation=a_fine", "device=cpu"])]) == 0
    )
    runs.statuses = iter([KeyboardInterrupt()])
    assert main([*arguments, "baseline=latest"]) == 130
    assert "interrupted: 0 of 1 cell on record; to go on: " in capsys.readouterr().err


def test_a_sweep_of_which_no_job_has_begun_goes_on_with_any_status(runs):
    runs.statuses = iter([KeyboardInterrupt()])
    assert main([*SWEEP]) == 130
    runs.statuses = itertools.repeat("ok")
    assert main(["bench", "resume=latest", "retry=crashed"]) == 0
    assert [len(cells) for cells in runs.cells] == [2, 2, 2, 2]


def test_a_sweep_goes_on_as_it_was_configured_and_where_it_began(runs, capsys, monkeypatch, tmp_path):
    runs.statuses = itertools.chain([KeyboardInterrupt()], itertools.repeat("ok"))
    assert main([*SWEEP]) == 130
    (sweep,) = Path("results").iterdir()
    capsys.readouterr()
    assert main(["bench", "resume=latest", "batch=4"]) == 2 and "leave out batch=4" in capsys.readouterr().err
    (tmp_path / "else").mkdir()
    whole = sweep.resolve()
    monkeypatch.chdir(tmp_path / "else")
    assert main(["bench", f"resume={whole}"]) == 2
    assert capsys.readouterr().err == (
        f"fusebench: resume={whole}: that sweep began in {tmp_path}, from where its files are named: go on there\n"
    )
    monkeypatch.chdir(tmp_path)
    (sweep / "bench.sweep.yaml").write_text("arguments: 3\n")
    assert main(["bench", "resume=latest"]) == 2 and "holds no sweep: arguments is 3" in capsys.readouterr().err


def test_a_folder_that_was_named_takes_one_sweep(runs, capsys):
    assert main([*SWEEP, "hydra.sweep.dir=mine"]) == 0
    capsys.readouterr()
    assert main([*SWEEP, "hydra.sweep.dir=mine"]) == 2
    assert capsys.readouterr().err == "fusebench: mine holds a sweep already: resume=mine goes on with it\n"
    assert main(["bench", "resume=mine"]) == 0 and [len(cells) for cells in runs.cells] == [2, 2, 2, 0, 0, 0]


@pytest.mark.parametrize("place", range(4))
def test_a_flag_may_stand_anywhere(runs, place):
    words = [f"path={FAULTS}", "kernel=fault", "implementation=a_fine", "batch=1,2"]
    assert main(["bench", *words[:place], "-m", *words[place:]]) == 0 and len(runs.runs) == 2


@pytest.fixture
def elsewhere(monkeypatch):
    """Of each job nothing but its folder comes back, as from another process or machine."""
    run_job = app._run
    monkeypatch.setattr(app, "_run", lambda *arguments: run_job(*arguments) and 0)


@pytest.mark.parametrize(
    "folder",
    [[], ["hydra.run.dir=mine"], ["batch=1,2", "-m"], ["batch=1,2", "hydra.sweep.dir=mine", "-m"],
     ["batch=1,2", "hydra.sweep.dir=mine", "hydra.sweep.subdir=a/${hydra.job.num}", "-m"]],
)  # fmt: skip
@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("skipped", 0), ("wrong", 1)])
def test_the_exit_code_follows_from_the_folders_of_jobs_that_ran_elsewhere(runs, elsewhere, folder, status, code):
    runs.statuses = itertools.cycle(["ok", status])
    assert main(["bench", f"path={FAULTS}", "kernel=fault", "implementation=[a_fine,z_fine]", *folder]) == code
    assert len(list(Path().glob("*/**/records.jsonl"))) == (2 if "-m" in folder else 1)


def test_the_exit_code_of_a_run_that_went_on_elsewhere_is_that_of_all_its_records(runs, elsewhere):
    runs.statuses = iter(["wrong", KeyboardInterrupt()])
    arguments = ["bench", f"path={FAULTS}", "kernel=fault", "implementation=[a_fine,z_fine]"]
    assert main(arguments) == 1
    runs.statuses = itertools.repeat("ok")
    assert main(["bench", "resume=latest"]) == 1
    assert main(["bench", "resume=latest", "retry=wrong"]) == 0


def test_earlier_runs_in_a_folder_that_was_named_do_not_count(runs):
    arguments = ["bench", f"path={FAULTS}", "kernel=fault", "implementation=a_fine"]
    runs.statuses = iter(["wrong", "ok", "ok"])
    assert main([*arguments, "hydra.run.dir=mine/before"]) == 1
    assert main([*arguments, "hydra.run.dir=mine"]) == 0
    assert main([*arguments, "batch=1", "hydra.sweep.dir=mine", "-m"]) == 0


def test_a_full_disk_ends_all_jobs_with_one_line(runs, capsys):
    runs.statuses = iter(["ok", StorageError("no room")])
    assert main(["bench", "-m", f"path={FAULTS}", "kernel=fault", "implementation=[a_fine,z_fine]", "batch=1,2"]) == 1
    assert len(runs.runs) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"fusebench: the run ends here: no room; 1 of 2 cells on record; to go on: fusebench bench resume=/.*/results/[^/]*",
        line,
    )


def test_a_fault_of_ours_is_raised_as_it_is(runs):
    runs.statuses = iter([RuntimeError("ours")])
    with pytest.raises(RuntimeError, match="ours"):
        main(["bench", f"path={FAULTS}", "kernel=fault", "implementation=a_fine"])


# What is refused, and what only shows something


PARITY = {
    "inputs": "plain",
    "timeout_s": 1.0,
    "device": "cpu",
    "threads": 1,
    "rows_seed": 5,
    "worker": {"inline": False, "python": {"flax": "python3"}},
}


@pytest.mark.parametrize("key", ["time_s", "timeout_s"])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_times_that_cannot_be(key, value):
    chosen = PARITY | {"time_s": 0.5, "target": 0.01, "regime": "auto", "cache": "auto"}
    assert values.settings(chosen) == Settings(
        "cpu", Plan(0.5, 0.01, "isolated", "warm"), 1.0, 1, False, {"flax": "python3"}, rows_seed=5
    )
    with pytest.raises(UsageError, match=rf"^{key} is {value!r}: expected a number of seconds above 0$"):
        values.settings(chosen | {key: value})


def test_an_interpreter_without_a_name_is_none():
    with pytest.raises(UsageError, match=r"^worker\.python\.flax=: nothing there that can be run"):
        values.settings(PARITY | {"worker": {"inline": False, "python": {"flax": ""}}})


def test_parity_needs_no_time():
    assert values.settings(PARITY) == Settings("cpu", Plan(time_s=0), 1.0, 1, False, {"flax": "python3"}, rows_seed=5)


def test_a_preset_does_not_say_where_to_look_or_what_to_resume():
    for key in ("path", "resume"):
        composed = {"path": None, "resume": None}
        app.check_files(composed, [])
        with pytest.raises(UsageError, match=f"a file sets {key}=x: that is for the command line alone"):
            app.check_files(composed | {key: "x"}, [])
        app.check_files(composed | {key: "x"}, command_line.parse([f"{key}=x"]))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["kernel=fault", "--cfg", "job"], 0, "kernel: fault"),
        (["--nosuch"], 2, "fusebench: unknown flag --nosuch: a key has no dashes, nosuch=VALUE; --help shows the keys"),
        (
            ["--kernel=fault", "seed=1"],
            2,
            "fusebench: unknown flag --kernel=fault: a key has no dashes, kernel=fault; ",
        ),
        (["--kernel", "fault"], 2, "fusebench: unknown flag --kernel: a key has no dashes, kernel=VALUE; "),
        (["kernel=fault", "-m", "batch=1,x"], 2, "batch is 'x'"),
        (["kernel=fault", "--cfg", "job", "seed=7"], 0, "seed: 7"),
        (["--cfg"], 2, "fusebench: argument --cfg/-c: expected one argument"),
        (["kernel=fault", "seed=-1"], 2, "seed is -1"),
        (["kernel=fault", "threads=9999"], 2, "threads is 9999"),
        (["kernel=fault", "out_dir=a,b", "-m"], 2, "out_dir has several values: a sweep lies in one folder"),
    ],
)
def test_what_runs_nothing_leaves_nothing(runs, capsys, arguments, code, said):
    assert main(["bench", f"path={FAULTS}", *arguments]) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err and not runs.runs and not list(Path().iterdir())


def test_a_folder_of_one_s_own(runs):
    assert main(["bench", f"path={FAULTS}", "kernel=fault", "implementation=a_fine", "hydra.run.dir=mine"]) == 0
    assert [f.name for f in Path().iterdir()] == ["mine"] and json.loads(Path("mine/records.jsonl").read_text())[
        "status"
    ] == "ok"


# Options are text, whatever Hydra reads


@pytest.fixture
def with_options(monkeypatch):
    """The kernel has options whose values are no names."""
    options = {"eps": ("1", "1e-5", "inf", "nan"), "exact": ("true", "false")}
    kernel = replace(KERNELS["fault"], mathematics=replace(KERNELS["fault"].mathematics, options=options))
    monkeypatch.setattr(discovery, "find_kernels", lambda roots, broken=None: {"fault": kernel})


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("option.eps=1e-5", ["1e-5"]), ("option.eps=0.00001", ["1e-5"]), ("option.eps='1e-5'", ["1e-5"]), ("option.eps=[1e-5,1]", ["1e-5", "1"]),
        ("option.eps=inf", ["inf"]), ("option.eps=nan", ["nan"]), ("option.exact=false", ["false"]), ("option.exact=[True,False]", ["true", "false"]),
    ],
)  # fmt: skip
def test_an_option_that_hydra_reads_as_a_number_or_a_truth_value(runs, with_options, written, values):
    assert main(["bench", f"path={FAULTS}", "kernel=fault", "implementation=a_fine", written]) == 0
    name = written.split("=")[0].removeprefix("option.")
    ((_, cells),) = runs.runs
    assert [cell.case.options[name] for cell in cells] == values


@pytest.mark.parametrize(("written", "named"), [("eps=1e-7", "'1e-07'"), ("eps=true", "'true'"), ("exact=1", "'1'")])
def test_an_option_s_value_that_there_is_not(runs, with_options, capsys, written, named):
    assert main(["bench", f"path={FAULTS}", "kernel=fault", "implementation=a_fine", f"option.{written}"]) == 2
    assert f"unknown value {named} of option {written.split('=')[0]} of fault" in capsys.readouterr().err


# Names by patterns


def asked_for(runs, *words):
    """The (implementation, variant) of the cells of one run."""
    runs.runs.clear()
    assert main(["bench", f"path={FAULTS}", "kernel=fault", "case=odd", *words]) == 0
    ((_, cells),) = runs.runs
    return [cell.implementation for cell in cells]


def test_patterns_and_names_left_out_on_the_command_line(runs):
    every = list(KERNELS["fault"].implementations)
    fine = [name for name in every if name.endswith("_fine")]
    assert asked_for(runs, "implementation=*_fine") == fine and len(fine) > 1
    assert asked_for(runs, "implementation=[?_fine,~z*]") == ["a_fine"]
    assert asked_for(runs, "implementation=[all,~a_fine]") == [name for name in every if name != "a_fine"]
    assert asked_for(runs, "implementation=~*_fine") == [name for name in every if name not in fine]
    assert asked_for(runs, "implementation=[z_fine,a*]") == ["z_fine", *(n for n in every if n[0] == "a")]
    assert asked_for(runs, "implementation=a_fine:def*") == ["a_fine"]
    assert asked_for(runs, "implementation=a_fine", "dtype=*16") == ["a_fine"] * 2
    assert asked_for(runs, "implementation=a_fine", "mode=[all,~*backward]") == ["a_fine"]
    assert asked_for(runs, "kernel=fa*", "implementation=a_fine", "case=~odd") == ["a_fine"] * 1


def test_a_sweep_of_patterns(runs):
    words = ["bench", "-m", f"path={FAULTS}", "kernel=fault", "case=odd"]
    assert main([*words, "implementation=a_fine,[*_fine,~a_fine]"]) == 0
    assert [[c.implementation for c in cells] for _, cells in runs.runs] == [["a_fine"], ["z_fine"]]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("kernel=falt*", "no kernel matches 'falt*': did you mean fault? There are: "),
        ("kernel=[all,~falt]", "unknown kernel 'falt': did you mean fault?"),
        ("kernel=[fault,~fault]", "kernel=[fault,~fault] leaves none"),
        ("implementation=[all,~z_fin?x]", "no implementation matches 'z_fin?x': did you mean z_fine"),
        ("implementation=a_fine:rw*", "no variant of a_fine matches 'rw*'. There are: default"),
        ("implementation=[a_fine,~a*]", "implementation=[a_fine,~a*] leaves none"),
        ("case=od?d", "no case of fault matches 'od?d': did you mean odd? There are: "),
        ("dtype=*64", "no dtype matches '*64'. There are: "),
    ],
)
def test_a_pattern_that_matches_nothing_names_the_nearest(runs, capsys, word, said):
    assert main(["bench", f"path={FAULTS}", "kernel=fault", word]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fusebench: {said}") and error.count("\n") == 1 and not runs.runs


# How much is shown, where a run lies, and what only would run

FINE = ("bench", f"path={FAULTS}", "kernel=fault", "implementation=[a_fine,z_fine]", "case=odd", "device=cpu")


def test_a_run_lies_in_the_folder_that_is_named(runs, capsys):
    assert main([*FINE, "out_dir=mine/first"]) == 0
    assert {f.name for f in Path("mine/first").iterdir()} >= {"bench.yaml", "records.jsonl"} and not Path(
        "results"
    ).exists()
    assert capsys.readouterr().out.endswith("/mine/first/records.jsonl\n")
    assert [path.name for path in Path().iterdir()] == ["mine"], "and no other is made"
    assert main([*FINE, "out_dir=mine/first"]) == 2
    assert "mine/first holds a run already: resume=" in capsys.readouterr().err
    assert main(["bench", "resume=mine/first"]) == 0 and len(runs.cells[-1]) == 0


def test_a_sweep_lies_in_the_folder_that_is_named_and_is_one_table(runs, capsys):
    assert main([*FINE, "-m", "batch=3,5", "out_dir=mine"]) == 0
    assert [f.parent.name for f in sorted(Path("mine").glob("*/records.jsonl"))] == ["0", "1"]
    every = capsys.readouterr().out.split("all 2 jobs\n")[1]
    rows = table_of(every, "run")
    assert [(r["run"], r["case"], r["implementation"], r["time"]) for r in rows] == [
        (str(job), f"N={n}/float32", name, "100 µs") for job, n in enumerate((3, 5)) for name in ("a_fine", "z_fine")
    ]
    assert "4 cells: 4 ok" in every
    assert main(["show", "mine"]) == 0 and table_of(capsys.readouterr().out, "run") == rows


def test_one_job_has_no_table_of_all_jobs(runs, capsys):
    assert main([*FINE, "-m"]) == 0 and "all 1 jobs" not in capsys.readouterr().out


@pytest.mark.parametrize("word", ["quiet=true", "-q"])
def test_a_quiet_run_has_its_counts_alone(runs, capsys, word):
    runs.statuses = itertools.chain(["ok", "wrong"], itertools.repeat("ok"))
    assert main([*FINE, word]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("2 cells: 1 ok, 1 wrong\nwall time") and not captured.err
    assert main([*FINE, "-m", "batch=1,2", word]) == 0 and "implementation" not in capsys.readouterr().out


@pytest.mark.parametrize("word", ["verbose=true", "--verbose"])
def test_a_verbose_run_tells_of_each_cell_on_stderr(runs, capsys, word):
    runs.statuses = iter(["ok", "skipped"])
    assert main([*FINE, word]) == 0
    captured = capsys.readouterr()
    assert (
        captured.err
        == "[1/2] ok  fault odd/float32 a_fine  100 µs ± 7.0%!\n[2/2] skipped  fault odd/float32 z_fine  it is skipped\n"
    )
    assert "[1/2]" not in captured.out


def test_how_much_is_shown_is_no_part_of_a_run_that_goes_on(runs, capsys):
    runs.statuses = itertools.chain(["ok", KeyboardInterrupt()], itertools.repeat("ok"))
    main([*FINE, "quiet=true"])
    capsys.readouterr()
    assert main(["bench", "resume=latest", "verbose=true"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("[2/2] ok") and "implementation" in captured.out


def test_a_baseline_beside_a_new_run(runs, capsys):
    assert main([*FINE, "out_dir=old"]) == 0 and main([*FINE, "baseline=old"]) == 0
    rows = table_of(capsys.readouterr().out.split("beside old\n")[1], "implementation")
    assert [(r["implementation"], r["baseline"], r["change"]) for r in rows] == [
        ("a_fine", "100 µs", "+0.0%"),
        ("z_fine", "100 µs", "+0.0%"),
    ]
    assert main([*FINE, "baseline=nosuch"]) == 2 and len(runs.runs) == 2, "that is found out before anything runs"


@pytest.mark.parametrize("more", [(), ("-m", "seed=0,1")])
def test_the_latest_run_beside_a_new_one_is_one_before_it(runs, capsys, more):
    assert main([*FINE, "seed=[0,1]", "out_dir=results/old"]) == 0
    file = Path("results/old") / store.FILE
    file.write_text(re.sub(r'"median": ?[^,]*', '"median":2e-4', file.read_text()))
    assert main([*FINE, "baseline=latest", *more]) == 0
    out = capsys.readouterr().out
    rows = [row for part in out.split("beside latest\n")[1:] for row in table_of(part, "implementation")]
    assert {r["baseline"] for r in rows} == {"200 µs"} and out.count("beside latest") == (2 if more else 1)


def test_a_dry_run_says_what_would_run_and_why_not_and_leaves_nothing(runs, capsys, monkeypatch):
    triton, cuda = (
        replace(KERNELS["fault"].implementations["a_fine"], name=n, without_gpu=w, requires={"triton": "triton"})
        for n, w in (("t", "interpreted"), ("c", "unavailable"))
    )
    lacks = replace(triton, name="l", without_gpu="timed", requires={"no_such_module": "a-package"})
    refuses = replace(
        triton, name="r", without_gpu="timed", requires={}, refused={"cpu": {"default": "needs tensor cores"}}
    )
    own = {i.name: i for i in (KERNELS["fault"].implementations["a_fine"], triton, cuda, lacks, refuses)}
    monkeypatch.setattr(
        discovery, "find_kernels", lambda roots, broken=None: {"fault": replace(KERNELS["fault"], implementations=own)}
    )
    words = ["bench", "kernel=fault", "case=odd", "device=cpu", "dtype=[float32,bfloat16]"]
    for word in ("dry_run=true", "--dry-run"):
        assert main([*words, word]) == 0
        out = capsys.readouterr().out
        assert out.startswith(
            "\nfault  odd/float32  N=7\nwould run:  a_fine\nwould be checked on the CPU, interpreted or emulated, never timed:  t\n"
        )
        assert (
            "skipped  needs an NVIDIA GPU:  c\n" in out
            and "skipped  needs no_such_module: pip install a-package:  l\n" in out
        )
        assert "skipped  interpreted on the CPU, where Triton computes bfloat16 wrongly:  t\n" in out
        assert "skipped  needs tensor cores:  r\n" in out
        assert "10 cells: 3 would run, 7 would not; " in out
    assert (
        main([*words, "dry_run=true", "-m", "batch=1,2"]) == 0
        and "job 1  fault  N=2/float32" in capsys.readouterr().out
    )
    assert main(["compare", "a_fine", "c", "kernel=fault", "case=odd", "device=cpu", "dry_run=true"]) == 0
    assert "skipped  side B: needs an NVIDIA GPU:  " in capsys.readouterr().out
    assert main(["parity", "kernel=fault", "implementation=t", "dry_run=true"]) == 0
    assert "would run:  t\n" in capsys.readouterr().out
    for count, said in ((4, "t, t seed=1, t seed=2, t seed=3"), (5, "t (5 cells)")):
        assert main(["parity", "kernel=fault", "implementation=t", f"seed={list(range(count))}", "dry_run=true"]) == 0
        assert f"would run:  {said}\n" in capsys.readouterr().out, "a grid is counted"
    assert not runs.runs and not list(Path().iterdir())
    assert (
        main(["parity", "kernel=fault", "implementation=a_fine", "worker.python.torch=/no/python", "dry_run=true"]) == 2
    )


@pytest.mark.parametrize("place", ["/proc/x", "file/x"])
@pytest.mark.parametrize("words", [["bench"], ["compare", "a_fine", "z_fine"]])
def test_a_dry_run_says_where_no_results_can_be_written(runs, capsys, place, words):
    Path("file").touch()
    assert main([*words, "kernel=fault", "case=odd", "device=cpu", "dry_run=true", f"out_dir={place}"]) == 2
    assert f"fusebench: results cannot be written to {place}: " in capsys.readouterr().err
