"""`fusebench sanitize` from the command line to the last line: with a compute-sanitizer that says what a test has it say, and, where
there is a GPU, with the real one and planted mistakes."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from conftest import FIXTURES
from samples import table_of, untimed
from test_sanitizer_log import BEYOND, DIVERGENT, RACE, UNREAD, log

from fusebench import discovery, machine
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.commands import sanitize as command
from fusebench.configuration import request
from fusebench.contract import Cell
from fusebench.errors import StorageError, UsageError
from fusebench.records import arrow, store
from fusebench.sanitizer import run as sweeps
from fusebench.sanitizer import tool
from fusebench.sanitizer.check import Check

SANITIZED = FIXTURES / "sanitized"
TOOLS = tool.TOOLS
KERNELS = discovery.find_kernels([SANITIZED])  # alone: Hydra takes longer the more dimensions there are
CLEAN = {tool: log("ERROR SUMMARY: 0 errors") for tool in TOOLS}
CLEAN["racecheck"] = log("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
# It has no imports beyond these, so that it starts at once.
FAKE = """#!{python} -ISB
import json, os, shutil, sys, time
here = os.path.dirname(os.path.realpath(__file__))
if sys.argv[1] in ("--version", "--help"):
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1.0" if sys.argv[1] == "--version" else open(here + "/help").read())
    sys.exit()
tool, file = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--tool", "--log-file"))
request, folder = sys.argv[-3:-1]
cell = json.load(open(request))["cells"][0]
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps([cell["variant"], sys.argv, dict(os.environ)]) + "\\n")
plans = json.load(open(here + "/plans"))
plan = plans.get(cell["variant"] + "/" + tool, plans["else/" + tool])
print(plan.get("prints", ""), flush=True)
if "log" in plan:
    open(file.replace("%%", "%"), "w").write(plan["log"])
if "record" in plan:
    shutil.copy(here + "/" + cell["implementation"] + "." + cell["variant"] + "." + plan["record"], folder + "/records.jsonl")
if plan.get("hangs"):
    if os.fork() == 0:
        os.setsid()  # a program that left the group
    time.sleep(600)
os.kill(os.getpid(), plan["signal"]) if "signal" in plan else sys.exit(plan.get("code", 0))
"""
HELP = "--tool --log-file --launch-timeout --target-processes --print-limit --show-backtrace --kernel-name --padding --port"


class Fake:
    """A compute-sanitizer in a folder: what it says of each variant under each tool, and how it was called."""

    def __init__(self, folder):
        self.path = folder / "compute-sanitizer"
        self.path.write_text(FAKE.format(python=sys.executable))
        self.path.chmod(stat.S_IRWXU)
        (folder / "help").write_text(HELP)
        self.folder, self.plans = folder, {f"else/{tool}": {"log": CLEAN[tool], "record": "ok"} for tool in TOOLS}
        self.keep()
        for status, reason in (
            ("ok", None),
            ("wrong", "output 0 is off"),
            ("skipped", "too wide"),
            ("failed", "CUDA error"),
        ):
            for implementation in KERNELS["mirrored"].implementations.values():
                for variant in implementation.variants:
                    cell = Cell(make_case(KERNELS["mirrored"], "odd"), implementation.name, variant)
                    record = replace(untimed(status=status, reason=reason), id=cell.id, label=cell.label, cell=cell)
                    (folder / f"{implementation.name}.{variant}.{status}").write_bytes(store.encode(record) + b"\n")

    def keep(self):
        (self.folder / "plans").write_text(json.dumps(self.plans))

    def says(self, variant, tool, text=None, record="ok", **plan):
        """What it does from now on: it writes a log, and its program leaves a record of that status."""
        plan |= {key: value for key, value in (("log", text), ("record", record)) if value is not None}
        self.plans[f"{variant}/{tool}"] = plan
        self.keep()

    @property
    def calls(self):
        """(variant, the words after the options, the environment) of each call."""
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "some GPU", "driver": "580"})
    monkeypatch.setattr(discovery, "find_kernels", lambda roots, broken=None: KERNELS)
    return Fake(tmp_path / "bin")


def sanitize(resumed=False, **chosen):
    """One job without Hydra: its exit code."""
    defaults = {
        "kernel": "mirrored", "implementation": "cuda:clean", "case": "odd", "dtype": "float32", "precision": "ieee", "batch": None,
        "shapes": None, "device": "auto", "path": None, "seed": 0, "rows_seed": None, "inputs": "plain", "published": False, "timeout_s": 60.0,
        "threads": None, "resume": None, "retry": None, "config": {}, "shape": {}, "option": {}, "tools": "all", "jobs": 1, "sanitizer": None,
        "worker": {"inline": True, "python": {}},
    }  # fmt: skip
    completed = command._complete(defaults | chosen, KERNELS)
    asked = request.build("sanitize", [SANITIZED], completed, KERNELS)
    return command._run(asked, Path("results/it"), KERNELS, resumed)


def of_variants(*variants):
    return [f"cuda:{variant}" for variant in variants]


def the_run():
    (folder,) = Path("results").iterdir()
    return folder


def checks():
    return {f"{c.cell.variant}/{c.tool}": c for c in store.read(the_run(), Check)}


def test_a_clean_run_from_the_command_line_to_the_last_line(fake, capsys):
    assert main(["sanitize", f"path={SANITIZED}", "kernel=mirrored", "implementation=cuda:clean", "jobs=2"]) == 0
    found = checks()
    assert sorted(found) == sorted(f"clean/{tool}" for tool in TOOLS)
    check = found["clean/racecheck"]
    assert check.passed and check.errors == 0 and check.sanitizer == "2025.3.1.0" and not check.log
    assert check.id == "mirrored/odd/float32/cuda:clean/seed=0/racecheck" and check.status == "ok"
    assert arrow.table(found.values()).num_rows == 4
    assert [f.name for f in (the_run() / "logs").iterdir()] == [], "of a clean check nothing is left"
    out = capsys.readouterr().out
    assert table_of(out, "implementation") == [{"implementation": "cuda:clean"} | dict.fromkeys(TOOLS, "clean")]
    assert "4 checks of 1 cell: 4 clean\n" in out and f"{fake.path} 2025.3.1.0, " in out
    assert out.endswith(f"records: {the_run().resolve()}/records.jsonl\n") or out.endswith(
        f"records: {the_run()}/records.jsonl\n"
    )


PLANTED = [
    ("beyond", "memcheck", BEYOND, "Invalid __global__ write of size 4 bytes", "cuda.cu:24", (), 1),
    ("race", "racecheck", RACE, "race between write and read", "cuda.cu:14", ("cuda.cu:21", "cuda.cu:21"), 1132),
    ("misplaced", "synccheck", DIVERGENT, "Barrier error detected. Divergent thread(s) in block", "test.cu:42", (), 1),
    ("uninitialised", "initcheck", UNREAD, "Uninitialized __global__ memory read of size 4 bytes", "mirror+0x70", (), 1),
]  # fmt: skip


@pytest.mark.parametrize(("variant", "tool", "text", "kind", "place", "others", "count"), PLANTED)
def test_what_a_tool_finds_is_on_record_and_in_the_table(fake, capsys, variant, tool, text, kind, place, others, count):
    fake.says(variant, tool, log(text, "ERROR SUMMARY: 1 error"))
    assert sanitize(implementation=of_variants("clean", variant)) == 1
    found = checks()
    assert [name for name, check in found.items() if not check.passed] == [f"{variant}/{tool}"]
    check = found[f"{variant}/{tool}"]
    (finding,) = check.findings
    assert (finding.kind, finding.place, finding.others, finding.count) == (kind, place, others, count)
    assert finding.of == "ours" and check.status == "ok" and check.errors == 1
    assert kind.split()[0] in (the_run() / check.log).read_text() or tool == "racecheck"
    out = capsys.readouterr().out
    first, second = table_of(out, "implementation")
    assert first[tool] == "clean" and second[tool] == "1 finding"
    (row,) = table_of(out, "found in")
    assert (row["found in"], row["tool"], row["of"], row["what"]) == (f"cuda:{variant}", tool, "ours", kind)
    assert row["place"].startswith(place) and row["count"] == str(count)
    assert f"fusebench sanitize kernel=mirrored implementation=cuda:{variant} case=odd" in out
    assert f" tools={tool}\n" in out and "8 checks of 2 cells: 7 clean, 1 with findings\n" in out


def test_reports_of_one_place_are_one_finding(fake):
    other_thread = BEYOND.replace("thread (0,0,0)", "thread (1,0,0)").replace("1bc", "1c0")
    fake.says("clean", "memcheck", log(BEYOND + other_thread + UNREAD, "ERROR SUMMARY: 3 errors"))
    assert sanitize(tools="memcheck") == 1
    first, second = checks()["clean/memcheck"].findings
    assert (first.count, second.count) == (2, 1) and "1bc" in first.example


def test_kernels_of_the_framework_and_the_host_are_told_apart_and_fail_nothing(fake, capsys):
    library = UNREAD.replace("mirror(", "void at::native::fill<float>(")
    host = "Host API memory access error at host access to 0x7f of size 4 bytes\n    Uninitialized access to 0x7f\n"
    fake.says("clean", "initcheck", log(library + "\n" + host, "ERROR SUMMARY: 2 errors"))
    assert sanitize(tools="initcheck") == 0
    check = checks()["clean/initcheck"]
    assert [f.of for f in check.findings] == ["library", "host"]
    assert "at::native::fill" in (the_run() / check.log).read_text(), "what was reported can be read"
    out = capsys.readouterr().out
    assert table_of(out, "implementation")[0]["initcheck"] == "clean, 1 of the library, 1 of the host"
    assert [row["of"] for row in table_of(out, "found in")] == ["library", "host"]


def test_words_that_are_not_known_are_a_finding_all_the_same(fake):
    fake.says("clean", "synccheck", log("Something of a later version", "ERROR SUMMARY: 3 errors"))
    assert sanitize(tools="synccheck") == 1
    (finding,) = checks()["clean/synccheck"].findings
    assert finding.count == 3 and checks()["clean/synccheck"].notes == ("Something of a later version",)


def test_an_output_that_is_wrong_under_a_tool_is_a_finding(fake, capsys):
    fake.says("clean", "racecheck", CLEAN["racecheck"], record="wrong")
    assert sanitize() == 1
    check = checks()["clean/racecheck"]
    assert check.status == "wrong" and [f.kind for f in check.findings] == ["wrong under racecheck"]
    out = capsys.readouterr().out
    assert table_of(out, "implementation")[0]["racecheck"] == "wrong"
    assert "wrong  cuda:clean racecheck: output 0 is off" in out and "3 clean, 1 wrong" in out


@pytest.mark.parametrize(
    ("plan", "status", "reason"),
    [
        ({"record": None, "signal": 11}, "crashed", "it ended without a record: killed by SIGSEGV"),
        ({"record": None, "code": 3, "prints": "no such option"}, "crashed", "it ended without a record: exit code 3 (no such option)"),
        ({"record": None, "text": log("Error: No attachable process found. It timed out.")}, "crashed", "No attachable process found. It timed out."),
        ({"text": log(BEYOND)}, "crashed", "memcheck did not come to its end: its log ends without a summary"),
        ({"text": log("Internal Sanitizer Error: out of memory")}, "crashed", "memcheck did not come to its end: Internal Sanitizer Error: out of memory"),
        ({"text": log(BEYOND, "ERROR SUMMARY: 1 error"), "record": "failed"}, "failed", "CUDA error"),
    ],
)  # fmt: skip
def test_a_tool_that_dies_is_a_row_with_its_reason(fake, capsys, plan, status, reason):
    fake.says("clean", "memcheck", **plan)
    assert sanitize(tools=["memcheck", "racecheck"]) == 1
    found = checks()
    assert (found["clean/memcheck"].status, found["clean/memcheck"].record.reason) == (status, reason)
    assert found["clean/racecheck"].passed and len(found["clean/memcheck"].findings) == ("Invalid" in str(plan))
    assert f"{status}  cuda:clean memcheck: {reason}" in capsys.readouterr().out


def test_a_check_that_hangs_is_given_up_with_all_that_it_started(fake):
    fake.says("clean", "memcheck", log(BEYOND), record=None, hangs=True)
    begin = time.monotonic()
    assert sanitize(timeout_s=1, tools=["memcheck", "synccheck"]) == 1
    assert time.monotonic() - begin < 60
    check = checks()["clean/memcheck"]
    assert (
        check.status == "timeout"
        and check.record.reason == "no end within 1 s under memcheck (timeout_s sets the limit)"
    )
    assert len(check.findings) == 1 and checks()["clean/synccheck"].passed, "what it said before is kept"
    assert not ours_alive(fake)


def test_a_tool_that_does_not_end_behind_a_clean_summary_is_no_clean_check(fake):
    fake.says("clean", "memcheck", CLEAN["memcheck"], hangs=True)
    assert sanitize(timeout_s=1, tools="memcheck") == 1
    assert checks()["clean/memcheck"].status == "timeout"


def ours_alive(fake):
    """Processes of the stand-in that still run; one that was just killed may take a moment."""
    for _ in range(100):
        alive = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(fake.path) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        if not alive:
            break
        time.sleep(0.05)
    return alive


def test_what_a_program_prints_does_not_fill_the_disk(fake, monkeypatch):
    monkeypatch.setattr(sweeps, "LOG_BYTES", 1000)
    fake.says("clean", "memcheck", record=None, prints="x" * 5000, hangs=True)
    assert sanitize(timeout_s=1, tools="memcheck") == 1
    assert (the_run() / checks()["clean/memcheck"].log).with_suffix(".out").stat().st_size == 500


def test_a_cell_that_cannot_run_is_asked_once(fake, capsys):
    fake.says("race", "memcheck", CLEAN["memcheck"], record="skipped")
    assert sanitize(implementation=of_variants("clean", "race")) == 0
    assert [call[0] for call in fake.calls].count("race") == 1
    assert {c.status for name, c in checks().items() if name.startswith("race")} == {"skipped"}
    out = capsys.readouterr().out
    assert "skipped  too wide  cuda:race\n" in out and "8 checks of 2 cells: 4 clean, 4 skipped\n" in out


def test_the_command_line_of_each_tool(fake):
    assert sanitize() == 0
    for _, words, env in fake.calls:
        tool = words[words.index("--tool") + 1]
        options, program = words[: words.index("--")], words[words.index("--") + 1 :]
        assert program[1:3] == ["-Pm", "fusebench.sanitizer.cell"] and program[-1] == str(os.getpid())
        watched = [options[n + 1] for n, word in enumerate(options) if word == "--kernel-name"]
        assert ("kns=6mirror" in watched) == (tool != "initcheck"), "what others write is initialised too"
        assert ("--padding" in options) == (tool == "memcheck")
        assert "--racecheck-report" not in options, "its help does not name it"
        assert env["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1" and env["XLA_PYTHON_CLIENT_ALLOCATOR"] == "cuda_async"
        assert env["FUSEBENCH_LINEINFO"] == "1" and "TRITON_INTERPRET" not in env


def test_jobs_work_side_by_side_in_places_of_their_own(fake, monkeypatch):
    most, popen = [], sweeps.subprocess.Popen
    started = []

    def start(*words, **more):
        started.append(popen(*words, **more))
        most.append(sum(one.poll() is None for one in started[:-1]) + 1)
        return started[-1]

    monkeypatch.setattr(sweeps.subprocess, "Popen", start)
    for variant in ("clean", "race", "beyond"):
        fake.says(variant, "memcheck", CLEAN["memcheck"])
    assert sanitize(jobs=3, implementation=of_variants("clean", "race", "beyond")) == 0
    ports = {words[words.index("--port") + 1] for _, words, _ in fake.calls}
    assert len(ports) == 3 and len(fake.calls) == 12 and max(most) <= 3


def test_all_that_launch_kernels_of_their_own_are_the_default(fake):
    assert sanitize(tools="memcheck", implementation=None) == 0
    assert {c.cell.label for c in store.read(the_run(), Check)} == {
        *(f"{i}:{v}" for i in ("triton", "jax_triton") for v in ("clean", "beyond")), *(f"cuda:{v}" for v in ("clean", "race", "beyond", "uninitialised", "misplaced"))
    }  # fmt: skip
    kept = (the_run() / "sanitize.yaml").read_text()
    assert "implementation:\n- cuda\n- jax_triton\n- triton\n" in kept and "device: cuda\n" in kept


def test_an_interrupted_run_goes_on_with_the_checks_that_are_left(fake, capsys, monkeypatch):
    append, written = store.append, []

    def interrupted(*words):
        append(*words)
        written.append(words)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "append", interrupted)
    fake.says("clean", "synccheck", hangs=True)  # at work when it is interrupted
    assert sanitize(jobs=3) == 130
    captured = capsys.readouterr()
    assert captured.err == "interrupted: 2 of 4 checks on record; to go on: fusebench sanitize resume=results/it\n"
    assert "of 1 cell: " in captured.out, "what it has"
    assert not list(the_run().glob(".inputs-*")) and not ours_alive(fake)
    fake.says("clean", "synccheck", CLEAN["synccheck"])
    fake.says("clean", "initcheck", log(UNREAD, "ERROR SUMMARY: 1 error"))
    kept = len(fake.calls)
    assert main(["sanitize", "resume=results/it"]) == 1
    assert len(written) == 4 and sorted(checks()) == sorted(f"clean/{tool}" for tool in TOOLS)
    assert len(fake.calls) == kept + 2
    assert "4 checks of 1 cell: 3 clean, 1 with findings\n" in capsys.readouterr().out
    assert sanitize(resumed=True) == 1 and len(written) == 4


def test_checks_of_the_named_statuses_run_again(fake):
    fake.says("clean", "memcheck", record=None, code=1)
    assert sanitize(sanitizer=str(fake.path)) == 1
    assert checks()["clean/memcheck"].record.reproduce.endswith(f" sanitizer={fake.path}")
    fake.says("clean", "memcheck", CLEAN["memcheck"])
    assert sanitize(resumed=True) == 1
    assert sanitize(resumed=True, retry="crashed") == 0
    assert len(fake.calls) == 5


def test_a_full_disk_ends_the_run_and_blames_no_cell(fake, monkeypatch):
    def full(*words):
        raise StorageError("no room")

    monkeypatch.setattr(store, "append", full)
    with pytest.raises(
        StorageError, match="no room; 0 of 4 checks on record; to go on: fusebench sanitize resume=results/it"
    ):
        sanitize()


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"tools": "memchek"}, "unknown tool 'memchek': did you mean memcheck? There are: initcheck, memcheck, racecheck, synccheck"),
        ({"jobs": 0}, "jobs is 0: expected a positive integer"),
        ({"worker": {"inline": False, "python": {}}}, "worker=process: sanitize runs each cell inline"),
        ({"sanitizer": "nosuch"}, "sanitizer=nosuch: no such program; expected the path of compute-sanitizer"),
        ({"sanitizer": "/bin/true"}, "/bin/true is no compute-sanitizer, or does not run: its --help is "),
        ({"kernel": "mirored", "implementation": None}, "unknown kernel 'mirored': did you mean mirrored?"),
        ({"retry": "crashed"}, "retry=crashed: it goes with resume="),
        ({"device": "cpu"}, "sanitize needs an NVIDIA GPU, and there is none here by device=cpu"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_runs(fake, chosen, said):
    with pytest.raises(UsageError) as error:
        sanitize(**chosen)
    assert str(error.value).startswith(said) and not store.read(Path("results/it"), Check)


def test_without_the_tool_or_a_gpu_it_says_so(fake, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nosuch")
    monkeypatch.setenv("CUDA_HOME", str(fake.folder.parent))
    assert tool.find(None).path == str(fake.path), "in CUDA_HOME/bin"
    (fake.folder / "help").write_text("--tool --kernel-regex")
    with pytest.raises(UsageError, match=r"has the version 2025.3.1.0: expected 2023.3 or a later one, of CUDA 12.3"):
        tool.find(None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["sanitize", f"path={SANITIZED}", "kernel=mirrored"]) == 2
    err = capsys.readouterr().err
    assert (
        err.endswith("it is neither on PATH nor in CUDA_HOME/bin: sanitizer=PATH says where it is\n")
        and err.count("\n") == 1
    )
    assert not Path("results").exists()
    monkeypatch.setattr(machine, "gpu", lambda: None)
    with pytest.raises(UsageError, match="sanitize needs an NVIDIA GPU, and there is none here by device=auto"):
        sanitize()


@pytest.mark.parametrize("seen", [["running", "sleeping", None], ["running", "sleeping", "zombie"]])
def test_the_program_under_the_tool_ends_with_its_parent(monkeypatch, seen):
    """The tool between them does not pass on that it is gone."""
    from fusebench.workers import below as program

    states, looks = iter(seen), []
    now = [next(states)]
    parent = SimpleNamespace(
        pid_exists=lambda number: number == 123 and now[0] is not None,
        Process=lambda number: SimpleNamespace(status=lambda: now[0]), STATUS_ZOMBIE=psutil.STATUS_ZOMBIE,
    )  # fmt: skip

    def sleep(seconds):
        looks.append(seconds)
        now[0] = next(states)

    monkeypatch.setattr(program, "psutil", parent)
    monkeypatch.setattr(program, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(program, "os", SimpleNamespace(_exit=lambda code: looks.append(f"exit {code}")))
    program._look(123)
    assert looks == [program.LOOK_S, program.LOOK_S, "exit 1"] and program.LOOK_S <= 10


FORKS = """
import os, sys
sys.stdin.readline()
if os.fork() == 0:
    os.setsid()
print(os.getpid(), flush=True)
sys.stdin.readline()
print("lives on", flush=True)
"""


def test_what_a_program_starts_while_it_is_being_ended_ends_with_it(monkeypatch):
    """Between the look for its children and its end it may start one that leaves its group."""
    from fusebench.workers import below

    children = psutil.Process.children

    def look(process, **how):
        found = children(process, **how)
        program.stdin.write(b"\n")
        program.stdin.flush()
        for _ in range(2 if select.select([program.stdout], [], [], 0.2)[0] else 0):
            program.stdout.readline()
        return found

    program = subprocess.Popen(
        [sys.executable, "-ISc", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    with program:
        monkeypatch.setattr(psutil.Process, "children", look)
        below.kill(program)
        program.stdin.close()
        assert b"lives on" not in program.stdout.read()


def test_the_program_under_the_tool_leaves_the_record_of_its_cell(tmp_path, monkeypatch):
    from fusebench.records.record import Record
    from fusebench.sanitizer import cell as program

    kernels = discovery.find_kernels([FIXTURES / "kernels"])
    chosen = {"device": "cpu", "timeout_s": 9.0, "threads": None, "rows_seed": 3, "inputs": "plain"}
    chosen |= {"worker": {"inline": True, "python": {}}}
    implementation = kernels["double"].implementations["torch_eager"]
    cell = Cell(make_case(kernels["double"], "odd"), "torch_eager", next(iter(implementation.variants)))
    asked = request.Request("sanitize", (str(FIXTURES / "kernels"),), chosen, (cell,))
    (tmp_path / "request.json").write_bytes(request.encode(asked))
    events = []
    monkeypatch.setattr(program.memory, "be_killed_first", lambda: events.append("is killed first"))
    monkeypatch.setattr(program.below, "end_with", lambda parent: events.append(f"ends with {parent}"))
    monkeypatch.setattr(program.signal, "alarm", lambda seconds: events.append(seconds))
    monkeypatch.setattr(sys, "argv", [program.__file__, str(tmp_path / "request.json"), str(tmp_path), "123"])
    environment = dict(os.environ)
    runpy.run_path(program.__file__, run_name="__main__")
    os.environ.clear()
    os.environ.update(environment)
    (record,) = store.read(tmp_path, Record)
    assert (record.id, record.status, record.reason) == (cell.id, "ok", None) and record.parity.first.ok
    assert events == ["ends with 123", "is killed first", program.EXIT_S] and 0 < program.EXIT_S <= 60


def test_a_cell_that_cannot_run_starts_no_process(fake, monkeypatch):
    mirrored = KERNELS["mirrored"]
    cuda = replace(mirrored.implementations["cuda"], broken="cuda.py cannot be read")
    monkeypatch.setitem(
        KERNELS, "mirrored", replace(mirrored, implementations={**mirrored.implementations, "cuda": cuda})
    )
    assert sanitize(tools="memcheck") == 1
    check = checks()["clean/memcheck"]
    assert check.record.status == "failed" and "cuda.py cannot be read" in check.record.reason and not fake.calls


def test_what_an_earlier_check_printed_is_no_reason_of_a_later_one(fake):
    fake.says("clean", "memcheck", record=None, code=1, prints="words of the first")
    assert sanitize(tools="memcheck") == 1
    assert "(words of the first)" in checks()["clean/memcheck"].record.reason
    fake.says("clean", "memcheck", record=None, code=1)
    assert sanitize(tools="memcheck", resumed=True, retry="crashed") == 1
    assert checks()["clean/memcheck"].record.reason.endswith("exit code 1")


def installed():
    try:
        return bool(tool.find(None))
    except UsageError:
        return False


@pytest.mark.gpu
@pytest.mark.skipif(not installed(), reason="there is no compute-sanitizer here")
def test_planted_mistakes_are_found_on_a_card_and_their_clean_twins_pass(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sanitize", f"path={SANITIZED}", "kernel=mirrored", "jobs=8", "timeout_s=240"]) == 1
    found = {f"{c.cell.label}/{c.tool}": c for c in store.read(the_run(), Check)}
    out = capsys.readouterr().out
    assert found["jax_triton:clean/memcheck"].status in ("ok", "skipped"), "it may not be installed"
    for name in ("cuda:clean", "triton:clean", "jax_triton:clean"):
        assert all(found[f"{name}/{tool}"].passed for tool in TOOLS), out
    planted = {
        "cuda:beyond/memcheck": ("Invalid __global__ write", "mirrored/cuda.cu:"), "cuda:race/racecheck": ("race between", "mirrored/cuda.cu:"),
        "cuda:misplaced/synccheck": ("Barrier error detected", ""), "cuda:uninitialised/initcheck": ("Uninitialized __global__", "mirrored/cuda.cu:"),
        "triton:beyond/memcheck": ("Invalid __global__ write", "mirrored/_triton_kernels.py:"),
    }  # fmt: skip
    if found["jax_triton:beyond/memcheck"].status != "skipped":
        planted["jax_triton:beyond/memcheck"] = planted["triton:beyond/memcheck"]
    for name, (kind, place) in planted.items():
        assert any(f.kind.startswith(kind) and f.place.startswith(place) for f in found[name].ours), out


@pytest.mark.parametrize(
    ("threads", "jobs", "count"), [(None, 1, 6), (None, 4, 1), (None, 9, 1), (None, 2, 3), (2, 1, 2), (2, 4, 2)]
)
def test_each_process_has_cores_to_itself(monkeypatch, threads, jobs, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {7, 1, 2, 3, 4, 5})
    sweep = sweeps.Sweep(SimpleNamespace(settings=SimpleNamespace(threads=threads)), None, None, jobs)
    assert sweep.cores == [1, 2, 3, 4, 5, 7][:count]
