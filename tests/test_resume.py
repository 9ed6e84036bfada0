"""A run that is killed leaves readable records and no orphans, and goes on where it was."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import DEVICE, FIXTURES
from test_command_line import ENVIRONMENT, fusebench, records_of

from fusebench import records


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
        "bench",
        f"path={faults}",
        "kernel=fault",
        "implementation=[a_fine,prints,hangs,z_fine]",
        "time_s=0.02",
        "timeout_s=5",
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
    assert [r["implementation"] for r in first] == ["a_fine", "prints"]

    done = fusebench("bench", "--resume", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    after = records_of(tmp_path)
    assert after[:2] == first, "finished cells are not repeated"
    assert [(r["implementation"], r["status"]) for r in after[2:]] == [("hangs", "timeout"), ("z_fine", "ok")]
    assert "4 cells" in done.stdout and not list(tmp_path.glob("results/*/.inputs-*"))


@pytest.mark.parametrize(
    "sent, interrupts",
    [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)],
    ids=["Ctrl-C", "background"],
)
def test_ending_it_keeps_what_was_measured_and_ends_a_whole_sweep(tmp_path, sent, interrupts):
    """A script's shell lets SIGINT be ignored in what it runs in the background; SIGTERM ends that all the same."""
    arguments = [
        "bench",
        "-m",
        f"path={FIXTURES / 'faults'}",
        "kernel=fault",
        "implementation=[a_fine,hangs]",
        "batch=1,2",
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "fusebench.cli", *arguments], cwd=tmp_path, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, interrupts),
    )  # fmt: skip
    wait_until(lambda: any(f.read_bytes().count(b"\n") == 1 for f in tmp_path.glob("results/*/0/records.jsonl")))
    run.send_signal(sent)
    _, told = run.communicate(timeout=30)
    assert run.returncode == 130 and "1 of 2 cells are kept" in told and "Traceback" not in told
    assert not list(tmp_path.glob("results/*/1")) and not list(tmp_path.glob("results/**/.inputs-*"))


def test_two_processes_do_not_resume_one_run(tmp_path):
    assert (
        fusebench("bench", "kernel=launch", "implementation=torch_eager", "time_s=0.02", cwd=tmp_path).returncode == 0
    )
    (folder,) = (tmp_path / "results").iterdir()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = fusebench("bench", "resume=latest", cwd=tmp_path)
    assert done.returncode == 2 and "another process is at work" in done.stderr


def test_resume_takes_no_other_keys(tmp_path):
    assert (
        fusebench("bench", "kernel=launch", "implementation=torch_eager", "time_s=0.02", cwd=tmp_path).returncode == 0
    )
    (folder,) = (tmp_path / "results").iterdir()
    kept = yaml.safe_load((folder / "bench.yaml").read_text())
    assert kept["device"] == DEVICE, "auto may be another device where the run goes on"
    done = fusebench("bench", f"resume={folder.name}", "dtype=bfloat16", cwd=tmp_path)
    assert done.returncode == 2 and "dtype=bfloat16" in done.stderr
    done = fusebench("bench", f"resume={folder.name}", cwd=tmp_path)
    assert done.returncode == 0 and len(records_of(tmp_path)) == 1, "a finished run has nothing left to do"


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    records.append(tmp_path, {"cell": "a", "value": float("nan")})
    with (tmp_path / records.FILE).open("a") as file:
        file.write('{"cell": "b", "val')
    assert [r["cell"] for r in records.read(tmp_path)] == ["a"]
    records.append(tmp_path, {"cell": "c"})
    lines = (tmp_path / records.FILE).read_text().splitlines()
    assert [json.loads(line)["cell"] for line in lines] == ["a", "c"]
