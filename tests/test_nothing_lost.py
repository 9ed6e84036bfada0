"""Whatever breaks around a run, its records stay, the message says what it was, and the run can go on."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import DEVICE, FIXTURES
from stand_in import light_python
from test_command_line import ENVIRONMENT, fusebench, records_of

from fusebench import discovery, folder, machine, memory
from fusebench.case_data import SETS, CaseData
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.commands import app
from fusebench.contract import Cell
from fusebench.errors import StorageError
from fusebench.records import store
from fusebench.records.record import Record
from fusebench.run import run
from fusebench.settings import Clock, Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers import pool, protocol

FAULTS = FIXTURES / "faults"
GOOD = 'BACKEND = "torch"\nVARIANTS = {"default": ()}\ndef build(case, variant, device):\n    return lambda x: x * 2\n'


def kernel_with(home, **bodies):
    """A folder with the fault kernel and implementations whose calls have the given bodies; returns its roots and kernel."""
    (home / "fault").mkdir(parents=True)
    shutil.copy(FAULTS / "fault" / "kernel.py", home / "fault")
    for name, body in bodies.items():
        (home / "fault" / f"{name}.py").write_text(GOOD.replace("return", f"{body}\n    return"))
    roots = discovery.roots_of([home])
    return roots, discovery.find_kernels(roots)["fault"]


def cells_of(kernel, *names):
    return [Cell(make_case(kernel, "small"), name, "default") for name in names]


def no_run(*_):
    raise AssertionError("nothing may be measured")


# A full disk


def test_a_full_disk_keeps_the_records_and_the_run_goes_on_later(tmp_path):
    names = ["a_fine", "prints", "stale", "misshapen", "z_fine"]
    arguments = ["parity", f"path={FAULTS}", "kernel=fault", f"implementation=[{','.join(names)}]", "inputs=plain"]
    arguments.append(f"worker.python.torch={light_python(tmp_path)}")
    # set by a program of its own, because a fork of this process and JAX's threads may never end
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)); "
    limit += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", limit, "-m", "fusebench.cli", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "Traceback" not in done.stderr + done.stdout
    (line,) = done.stderr.splitlines()
    (home,) = (tmp_path / "results").iterdir()
    kept = records_of(tmp_path)
    assert 0 < len(kept) < len(names) and f"{len(kept)} of {len(names)} cells on record" in line
    lines = (home / "records.jsonl").read_bytes()
    assert lines.endswith(b"\n"), "the line that did not fit is taken away"
    assert line.startswith("fusebench: the run ends here: ") and line.endswith(
        f"to go on: fusebench parity resume={home}"
    )

    fusebench("parity", f"resume={home}", cwd=tmp_path)
    assert (home / "records.jsonl").read_bytes().startswith(lines)
    assert [r.cell.implementation for r in records_of(tmp_path)] == names


@pytest.mark.parametrize("stem", ["input", "first", "repeated"])
def test_input_and_output_files_that_do_not_fit_cost_no_cell(kernels, roots, tmp_path, monkeypatch, stem):
    save = np.save

    def full(file, array):
        if Path(file).name.startswith(stem):
            raise OSError("25 requested and 0 written")  # as NumPy says it
        save(file, array)

    monkeypatch.setattr(pool, "environment", lambda *_: {})
    monkeypatch.setattr(np, "save", full)
    this = Run(kernels, roots, tmp_path, Settings(DEVICE, Plan(0.0), inline=True))
    with pytest.raises(StorageError, match=f"fault/small/float32/a_fine.*{stem}0.npy cannot be written: 25 requested"):
        list(run(this, cells_of(kernels["fault"], "a_fine")))
    assert store.read(tmp_path, Record) == [] and not list(tmp_path.glob(".inputs-*"))


@pytest.mark.parametrize(
    ("total", "free", "raised"),
    [
        (700, 500, (ValueError, "has 7e-07")),
        (10**12, 500, (StorageError, "has free 5e-07")),
        (10**12, 10**11, None),
        (800, 800, None),
    ],
)
def test_inputs_that_no_disk_of_this_size_holds_cost_their_cell_alone(
    kernels, tmp_path, monkeypatch, total, free, raised
):
    monkeypatch.setattr(shutil, "disk_usage", lambda where: shutil._ntuple_diskusage(total, total - free, free))
    (cell,) = cells_of(kernels["fault"], "a_fine")
    shared = CaseData(kernels["fault"].mathematics, cell, tmp_path, Settings(), Clock())
    if raised is None:
        assert len(shared.files) == SETS
    else:
        kind, has = raised
        with pytest.raises(kind, match=f"^its input files take 8e-07 GB, the results' disk {has} GB$"):
            _ = shared.files


# A folder that cannot be written


@pytest.mark.parametrize("kind", ["a file", "a link to nowhere", "read only"])
@pytest.mark.parametrize("multirun", [(), ("-m",)])
def test_results_that_cannot_be_written_are_named_before_anything_runs(tmp_path, monkeypatch, capfd, kind, multirun):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "run", no_run)
    if kind == "a file":
        Path("results").write_text("mine")
    else:
        Path("results").symlink_to("/nowhere/at/all" if kind == "a link to nowhere" else "/proc/self")
    assert main(["bench", *multirun, "kernel=launch"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("fusebench: results cannot be written to results") and line.endswith("nothing was measured")


@pytest.mark.parametrize("where", ["/proc/self/nowhere", "/dev/null/x"])
def test_a_folder_of_ones_own_that_cannot_be_written_is_named(tmp_path, monkeypatch, capfd, where):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "run", no_run)
    assert main(["bench", "kernel=launch", f"hydra.run.dir={where}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert where.rpartition("/")[0] in line


def test_a_configuration_that_does_not_fit_ends_the_run_before_it_begins(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "run", no_run)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["bench", "kernel=launch"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "No space left on device; nothing was measured" in line
    assert not list(tmp_path.glob("results/*/*bench.yaml"))


def test_a_table_that_cannot_be_printed_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fusebench.cli", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
    assert done.returncode == 1 and done.stderr.splitlines() == ["fusebench: the output: No space left on device"]


# Two runs at once


def test_two_runs_that_start_in_one_millisecond_have_folders_of_their_own(tmp_path, monkeypatch):
    moments = iter(["a", "a", "a", "b"])
    monkeypatch.setattr(folder, "moment", lambda: tmp_path / "results" / next(moments))
    assert [folder.new().name, folder.new().name] == ["a", "b"]


def test_a_run_that_is_going_on_is_left_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "run", lambda *_: iter(()))
    assert main(["bench", "kernel=launch", "hydra.run.dir=results/mine"]) == 0
    kept, scratch = Path("results/mine/bench.yaml").read_text(), Path("results/mine/.inputs-x")
    scratch.mkdir()
    with Path("results/mine/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for arguments in (["resume=latest"], ["kernel=lola", "hydra.run.dir=results/mine"]):
            assert main(["bench", *arguments]) == 2
            assert "another process is at work in" in capfd.readouterr().err
    assert Path("results/mine/bench.yaml").read_text() == kept and scratch.is_dir()


def test_a_second_run_in_one_folder_is_refused(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "run", lambda *_: iter(()))
    assert main(["bench", "kernel=launch", "hydra.run.dir=mine"]) == 0
    assert main(["parity", "kernel=launch", "hydra.run.dir=mine"]) == 2
    assert "holds a run already" in capfd.readouterr().err


# A device that goes away


def test_a_device_that_is_lost_leaves_every_cell_a_record_and_is_asked_for_once(tmp_path):
    roots, kernel = kernel_with(tmp_path / "mine", a_fine="", dies="import os; os._exit(7)", b_fine="", c_fine="")
    wrapper, starts = tmp_path / "python", tmp_path / "starts"  # an interpreter that works once
    wrapper.write_text(
        f'#!/bin/sh\necho >> {starts}\n[ $(wc -l < {starts}) = 1 ] || {{ echo no device; exit 3; }}\nexec {light_python(tmp_path)} "$@"\n'
    )
    wrapper.chmod(0o755)
    settings = Settings(DEVICE, Plan(0.0), pythons={"torch": str(wrapper)})
    this = Run({"fault": kernel}, roots, tmp_path / "run", settings)
    got = list(run(this, cells_of(kernel, "a_fine", "dies", "b_fine", "c_fine")))
    assert [r.status for r in got] == ["ok", "crashed", "crashed", "crashed"]
    assert all("exit code 3 (no device)" in r.reason for r in got[2:])
    assert starts.read_text().count("\n") == 2, "a start takes seconds: not one for every cell"
    assert store.read(tmp_path / "run", Record) == got


def test_a_worker_that_is_lost_after_its_cell_takes_no_record_with_it(kernels, roots, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "environment", lambda *_: {})
    ask = pool.InlineWorker.ask

    def lost(self, request, expected, timeout_s):
        if isinstance(request, protocol.Release):
            raise pool.WorkerLost("crashed", "the device is gone")
        return ask(self, request, expected, timeout_s)

    monkeypatch.setattr(pool.InlineWorker, "ask", lost)
    this = Run(kernels, roots, tmp_path, Settings(DEVICE, Plan(0.0), inline=True))
    assert [r.status for r in run(this, cells_of(kernels["fault"], "a_fine"))] == ["ok"]


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"])
def test_a_driver_that_does_not_answer_or_has_no_device_is_no_gpu(monkeypatch, fails):
    pynvml = pytest.importorskip("pynvml")

    def dead(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(machine, "gpu_handle", machine.gpu_handle.__wrapped__)  # nothing is remembered
    for name in ("nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlSystemGetDriverVersion"):
        monkeypatch.setattr(pynvml, name, lambda *_: "answer")
    assert machine.gpu.__wrapped__() == {"name": "answer", "driver": "answer"}
    monkeypatch.setattr(pynvml, fails, dead)
    assert machine.gpu.__wrapped__() is None


@pytest.mark.parametrize(
    ("visible", "handle"),
    [
        ("1", 1),
        ("GPU-ab12,GPU-ff00", 0),
        ("GPU-ab12-3", 0),
        ("GPU-ff", 1),
        ("GPU-", None),
        ("GPU-77", None),
        ("", None),
        ("-1", None),
    ],
)
def test_the_gpu_that_is_visible_is_the_one_whose_state_is_read(monkeypatch, visible, handle):
    pynvml = pytest.importorskip("pynvml")
    uuids = ["GPU-ab12-3", "GPU-ff00-9"]

    def by_uuid(uuid):
        if uuid not in uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuids.index(uuid)

    answers = {"nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: 2, "nvmlDeviceGetHandleByIndex": lambda i: i,
               "nvmlDeviceGetUUID": lambda i: uuids[i], "nvmlDeviceGetHandleByUUID": by_uuid}  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_handle.__wrapped__() == handle


# Memory


@pytest.mark.skipif(sys.platform != "linux", reason="limits the data segment")
def test_inputs_that_do_not_fit_into_memory_cost_their_cells_alone(kernels, run_cells, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 2 * 10**8)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    kernel = kernels["fault"]
    large = make_case(kernel, {"N": 10**8})
    got = run_cells([Cell(large, "a_fine", "default"), Cell(large, "z_fine", "default"), *cells_of(kernel, "a_fine")])
    assert [r.status for r in got] == ["failed", "failed", "ok"]
    assert "the case needs more host memory than the 0.2 GB that are free" in got[0].reason
    assert got[1].reason == got[0].reason
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
