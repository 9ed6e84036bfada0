"""A run that is killed leaves readable records and no orphans, and goes on where it was."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from conftest import DEVICE, FIXTURES
from stand_in import light_python
from test_command_line import ENVIRONMENT, fusebench, records_of

from fusebench import discovery, provenance
from fusebench.cli import main
from fusebench.commands import app
from fusebench.records import store
from fusebench.records.record import SCHEMA


def wait_until(true, seconds=60.0):
    """Polls until `true()`; fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def workers_of(marker):
    """Process ids of workers whose command line holds `marker`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if "fusebench.workers.worker" in line and marker in line:
            found.append(int(folder.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kill_9_leaves_records_and_no_orphans_and_the_run_goes_on(tmp_path):
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / "fault").symlink_to(FIXTURES / "faults" / "fault")
    arguments = [
        "parity",
        f"path={faults}",
        "kernel=fault",
        "inputs=plain",
        "implementation=[a_fine,prints,hangs,z_fine]",
        "timeout_s=3",
        f"worker.python.torch={light_python(tmp_path)}",
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "fusebench.cli", *arguments], cwd=tmp_path, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: any(f.read_bytes().count(b"\n") == 2 for f in tmp_path.glob("results/*/records.jsonl")))
    assert workers_of(str(faults))
    run.send_signal(signal.SIGKILL)  # now, with `hangs` in an endless loop
    run.wait()
    wait_until(lambda: not workers_of(str(faults)), 10)
    first = records_of(tmp_path)
    assert [r.cell.implementation for r in first] == ["a_fine", "prints"]

    done = fusebench("parity", "--resume", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    after = records_of(tmp_path)
    assert after[:2] == first, "finished cells are not repeated"
    assert [(r.cell.implementation, r.status) for r in after[2:]] == [("hangs", "timeout"), ("z_fine", "ok")]
    assert "4 cells" in done.stdout and not list(tmp_path.glob("results/*/.inputs-*"))


@pytest.mark.parametrize(
    "sent, interrupts",
    [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)],
    ids=["Ctrl-C", "background"],
)
def test_ending_it_keeps_what_was_measured_and_ends_a_whole_sweep(tmp_path, sent, interrupts):
    """A script's shell lets SIGINT be ignored in what it runs in the background; SIGTERM ends that all the same."""
    arguments = [
        "parity",
        "-m",
        f"path={FIXTURES / 'faults'}",
        "kernel=fault",
        "inputs=plain",
        "implementation=[a_fine,hangs]",
        "batch=1,2",
        f"worker.python.torch={light_python(tmp_path)}",
    ]
    # set by a program of its own, because a fork of this process and JAX's threads may never end
    begin = f"import os, signal, sys; signal.signal(signal.SIGINT, signal.{interrupts.name}); "
    begin += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    run = subprocess.Popen(
        [sys.executable, "-c", begin, "-m", "fusebench.cli", *arguments], cwd=tmp_path, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: any(f.read_bytes().count(b"\n") == 1 for f in tmp_path.glob("results/*/0/records.jsonl")))
    run.send_signal(sent)
    _, told = run.communicate(timeout=30)
    assert (
        run.returncode == 130
        and "interrupted: 1 of 2 jobs with records; to go on: " in told
        and "Traceback" not in told
    )
    assert not list(tmp_path.glob("results/*/1")) and not list(tmp_path.glob("results/**/.inputs-*"))


@pytest.fixture
def parity(tmp_path, monkeypatch, capfd):
    """A function that runs `parity` on cells that come out as `parity.statuses` says, by variant: exit code and what it told on
    stderr. `parity.ran` are the labels of the cells that ran the last time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discovery, "HOME", FIXTURES / "kernels")

    def run(this, cells):
        for cell in cells:
            parity.ran.append(cell.variant)
            record = provenance.new_record(cell, "cpu")
            status = parity.statuses.get(cell.variant, "ok")
            record = replace(record, status=status, reason=None if status == "ok" else "why")
            store.append(this.folder, record)
            yield record

    def parity(*arguments):
        parity.ran = []
        return main(["parity", *arguments]), capfd.readouterr().err

    monkeypatch.setattr(app, "run", run)
    parity.statuses = {}
    return parity


def test_resume_takes_no_other_keys(tmp_path, parity):
    assert parity("kernel=double", "implementation=torch_eager:plus")[0] == 0
    (folder,) = (tmp_path / "results").iterdir()
    kept = yaml.safe_load((folder / "parity.yaml").read_text())
    assert kept["device"] == DEVICE, "auto may be another device where the run goes on"
    code, told = parity(f"resume={folder.name}", "dtype=bfloat16")
    assert code == 2 and "dtype=bfloat16" in told
    assert parity(f"resume={folder.name}")[0] == 0 and not parity.ran, "a finished run has nothing left to do"
    assert len(records_of(tmp_path)) == 1


BOTH = ("kernel=double", "implementation=[torch_eager:plus,torch_eager:times]")


def test_cells_of_a_status_run_again_and_their_last_records_count(tmp_path, parity):
    parity.statuses = {"times": "crashed"}
    assert parity(*BOTH)[0] == 1 and parity.ran == ["plus", "times"]
    (file,) = tmp_path.glob("results/*/parity.yaml")
    kept = file.read_text()
    assert parity("resume=latest")[0] == 1 and parity.ran == [], "without it no cell is tried twice"
    assert parity("resume=latest", "retry=timeout")[0] == 1 and parity.ran == []
    parity.statuses = {}
    assert parity("resume=latest", "retry=[timeout,crashed]") == (0, "") and parity.ran == ["times"]
    assert [(r.cell.variant, r.status) for r in records_of(tmp_path)] == [
        ("plus", "ok"), ("times", "crashed"), ("times", "ok"),
    ]  # fmt: skip
    assert parity("resume=latest", "retry=crashed")[0] == 0 and parity.ran == [], "the last record says how a cell is"
    assert file.read_text() == kept, "it is of this time alone"


def test_a_cell_that_was_ok_may_end_worse_the_second_time(parity):
    assert parity(*BOTH)[0] == 0
    parity.statuses = {"plus": "failed"}
    assert parity("resume=latest", "retry=ok")[0] == 1 and parity.ran == ["plus", "times"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*BOTH, "retry=crashed"), "retry=crashed: it goes with resume="),
        (("resume=latest", "retry=crashd"), "did you mean crashed"),
        (("resume=latest", "retry=[ok,nosuch]"), "unknown status 'nosuch'"),
    ],
)
def test_a_retry_that_means_nothing_is_named(parity, arguments, named):
    assert parity(*BOTH)[0] == 0
    code, told = parity(*arguments)
    assert code == 2 and named in told and len(told.splitlines()) == 1 and parity.ran == []


@dataclass(frozen=True)
class Line:
    """What a file of records is made of here."""

    id: str
    value: float = 0.0
    schema: int = SCHEMA


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    store.append(tmp_path, Line("a", float("nan")))
    with (tmp_path / store.FILE).open("a") as file:
        file.write('{"id": "b", "val')
    (first,) = store.read(tmp_path, Line)
    assert first.id == "a" and math.isnan(first.value)
    store.append(tmp_path, Line("c"))
    lines = (tmp_path / store.FILE).read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a", "c"]
