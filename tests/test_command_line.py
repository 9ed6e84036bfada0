"""The command line: bad input ends with one line and exit code 2, help is quick, and a run leaves what it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import FIXTURES
from samples import table_of
from stand_in import light_python

from fusebench.commands import app, completion
from fusebench.configuration import schema
from fusebench.records import store
from fusebench.records.record import Record

REPOSITORY = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
}


def fusebench(*arguments, cwd, **options):
    """Runs the command as a user does, in a folder of its own."""
    command = [sys.executable, "-m", "fusebench.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, **options)


def records_of(folder):
    """The records of the only run in folder/results."""
    (file,) = Path(folder).glob("results/**/records.jsonl")
    return store.read(file.parent, Record)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("kernl=lola", "did you mean kernel"),
        ("kernel=lolla", "did you mean lola"),
        ("kernel=[lola,nosuch]", "launch, lola"),
        ("kernel=null", "launch, lola"),
        ("implementation=tritn", "did you mean triton"),
        ("implementation=triton:nosuch", "multirow_ws"),
        ("case=nosuch", "batch"),
        ("kernel=launch case=token", "unknown case 'token' of launch. There are: floor, odd, one"),
        ("kernel=[lola,launch] case=floor", "lola has no case floor: leave it out of kernel=lola,launch"),
        ("kernel=launch case=odd shapes=mine.csv", "shapes=mine.csv has the sizes of all cases: leave out case="),
        ("dtype=fp16", "bfloat16, float16, float32"),
        ("precision=tf64", "ieee, tf32"),
        ("shape.Q=3", "LAYERS, M, N"),
        ("shape.K=0", "positive integer"),
        ("shape.K=-3", "positive integer"),
        ("shape.K=1.5", "positive integer"),
        ("shape.K=many", "positive integer"),
        ("batch=true", "positive integer"),
        ("option.w_layout=xx", "kn, nk"),
        ("option.nosuch=1", "w_layout"),
        (
            "kernel=lola option.act=gelu",
            "unknown option 'act' of lola: did you mean activation? There are: activation, w_layout",
        ),
        ("kernel=[lola,launch] shape.Q=3", "unknown dimension 'Q' of lola, launch. There are: K, M, N"),
        ("shape.M=100000000000000000000", "no machine has memory for more than 9007199254740992"),
        ("device=tpu", "auto, cpu, cuda"),
        ("seed=abc", "abc"),
        ("time_s=0", "above 0"),
        ("timeout_s=inf", "above 0"),
        ("batch=[]", "batch=[] chooses nothing"),
        ("case=[]", "case=[] chooses nothing"),
        ("experiment=null", "group"),
        ("experiment=nosuch", "published"),
        ("worker=nosuch", "inline, process"),
        ("worker.python.nosuch=python3", "worker.python.NAME"),
        ("resume=nosuch", "no bench run there"),
        ("resume=nosuch kernel=softmax", "no bench run there"),
        ("shapes=nosuch.csv", "nosuch.csv"),
        ("path=nosuch", "no such folder"),
        ("kernel=[", "[ and ] do not match; expected kernel=VALUE, or kernel=[VALUE,VALUE] for several"),
        ("kernel='lola", "a quote is not closed; expected kernel=VALUE"),
        ("batch=[1,,2]", "a value is missing beside a comma; expected batch=VALUE"),
        ("kernel=lo;la", "lo;la is no value; other text stands in quotes"),
        ("option.act(=1", "option.act( is no key; expected KEY=VALUE"),
        ("=lola", "expected KEY=VALUE"),
        ("experiment@it=quick", "no key has an @; expected experiment=VALUE"),
        ("kernel={a:1}", "kernel={a:1}: expected a value or a list"),
        ("time_s=null", "time_s=null: expected a value"),
        ("-m batch=range(1,5,0)", "no list of values; expected batch=VALUE,VALUE or one range, batch=range(1,4)"),
        ("path=", "no such folder"),
        ("path=.", "no kernel there"),
        ("worker.python.flax=/no/python", "nothing there that can be run; expected a Python interpreter"),
        ("lola", "KEY=VALUE"),
        ("~kernel", "~kernel"),
        ("kernel=lola,launch", "--multirun"),
        ("worker.python.flax=[1]", "worker.python.flax"),
        ("--config-name=parity", "--config-dir"),
        ("--config-dir=nosuch", "no such folder"),
        ("--resolve", "--cfg"),
        ("--experiment=quick", "a key has no dashes, experiment=quick"),
        ("experiment=interval(0,1)", "interval(0,1)"),
        ("hydra/launcher=nosuch", "hydra/launcher"),
        ("hydra.run.dir=null", "hydra.run.dir"),
        ("path=" + "y" * 5000, "too long"),
    ],
)
def test_a_wrong_override_is_answered_by_one_line(tmp_path, monkeypatch, capfd, override, named):
    from fusebench.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["bench", *override.split()]) == 2
    captured = capfd.readouterr()
    assert len(captured.err.splitlines()) == 1 and named in captured.err and "Traceback" not in captured.err
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_wrong_name_in_the_last_job_of_a_sweep_costs_nothing(tmp_path, answered):
    done = answered("bench", "-m", "kernel=launch,nosuch")
    assert done.returncode == 2 and "nosuch" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["nosuch", "bnech"])
def test_an_unknown_command_is_named(command):
    done = fusebench(command, cwd=".")
    assert done.returncode == 2 and command in done.stderr and "bench" in done.stderr


def test_help_loads_no_framework_and_is_quick():
    code = "import sys; from fusebench.cli import main; main(['--help']); print([m for m in ('torch', 'jax', 'triton', 'hydra') if m in sys.modules])"
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.perf_counter() - begin < 10, "a second on an idle machine; the limit only catches an import gone wrong"


@pytest.mark.parametrize(("command", "usage"), [("bench", "[KEY"), ("compare", "A B [KEY"), ("parity", "[KEY")])
def test_help_shows_the_usage_and_the_keys(answered, command, usage):
    done = answered(command, "--help")
    assert done.returncode == 0 and not done.stderr
    keys = dict(re.findall(r"^  ([a-z_.]+)=\S.*?  +(\w.*)$", done.stdout, re.MULTILINE))
    assert {*schema.SCHEMAS[command].__dataclass_fields__, "worker", "experiment"} <= set(keys), (
        "each has a line that says what it means"
    )
    assert done.stdout.count("shape.") == 1 and "shape.DIM=SIZE" in done.stdout
    assert done.stdout.startswith(f"usage: fusebench {command} {usage}")
    assert "\n  --config-dir DIR  a folder with presets" in done.stdout, "the longest flag has its text beside it"
    assert "num_warps" not in done.stdout and "fusebench list kernel=NAME" in done.stdout
    assert "PROGRAMS, ROWS," in answered(command, "kernel=softmax", "--help").stdout


@pytest.mark.parametrize("command", ["diff", "inspect", "profile"])
def test_help_of_what_is_never_resumed_leaves_resume_out(answered, command):
    shown = answered(command, "--help").stdout
    assert "resume=" not in shown and "  out_dir=" in shown


def test_bench_times_what_it_is_asked_for(tmp_path, on_shared_workers):
    done = on_shared_workers(
        "bench", "kernel=lola", "implementation=[torch_eager,flax:pieces]", "batch=[1,3]", "shape.K=17", "shape.N=9", "time_s=0.02",
        "inputs=plain",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path)
    assert [(r.label, r.case.sizes) for r in records] == [
        (label, {"M": m, "K": 17, "N": 9}) for m in (1, 3) for label in ("torch_eager", "flax:pieces")
    ]
    for record in records:
        assert record.status == "ok" and len(record.timing.samples) >= 3
        assert 0 < record.timing.q1 <= record.timing.median <= record.timing.q3
        assert record.parity.first.ratio <= 1 and record.parity.timed.ratio <= 1
        assert (
            record.environment.packages["numpy"]
            and record.device.name
            and record.cell.seed == 0
            and record.build.compile_s >= 0
        )
    assert "torch_eager" in done.stdout and "wall time" in done.stdout


def test_a_multirun_runs_every_job(tmp_path, on_shared_workers):
    done = on_shared_workers(
        "bench", "-m", "kernel=launch", "implementation=torch_eager", "dtype=float32,bfloat16", "time_s=0.02"
    )
    assert done.returncode == 0, done.stderr
    found = [
        json.loads(f.read_text())["cell"]["case"]["dtype"]
        for f in sorted(tmp_path.glob("results/*/[01]/records.jsonl"))
    ]
    assert found == ["float32", "bfloat16"]


def light_double(folder):
    """The words of a kernel that needs no framework, and of its worker without one."""
    light = f"worker.python.torch={light_python(folder)}"
    return f"path={FIXTURES / 'kernels'}", "kernel=double", "implementation=torch_eager:times", light


@pytest.mark.parametrize(
    ("name", "text", "sizes"),
    [
        ("mine.csv", "N\n2\n5\n", [{"N": 2}, {"N": 5}]),
        ("mine.yaml", "- {N: 2}\n", [{"N": 2}]),
    ],
)
def test_sizes_come_from_a_file(tmp_path, answered, name, text, sizes):
    (tmp_path / name).write_text(text)
    done = answered("parity", *light_double(tmp_path), f"shapes={name}")
    assert done.returncode == 0, done.stderr
    assert [r.case.sizes for r in records_of(tmp_path)] == sizes


@pytest.mark.parametrize(
    ("text", "named"),
    [("M,K\n1,2\n", "dimensions M, K, N"), ("M,K,N\n1,x,2\n", "'x'"), ("", "no sizes; expected the header M,K,N")],
)
def test_a_wrong_file_of_sizes_is_named(tmp_path, answered, text, named):
    (tmp_path / "mine.csv").write_text(text)
    done = answered("bench", "kernel=lola", "shapes=mine.csv")
    assert done.returncode == 2 and named in done.stderr and "mine.csv" in done.stderr


def test_the_exit_code_tells_of_a_cell_that_is_not_well(tmp_path, answered):
    done = answered(
        "parity", f"path={FIXTURES / 'faults'}", "kernel=fault", "implementation=[a_fine,wrong]",
        f"worker.python.torch={light_python(tmp_path)}",
    )  # fmt: skip
    assert done.returncode == 1 and "budget" in done.stdout


def test_inputs_that_fit_nowhere_cost_their_cells_alone(tmp_path, answered):
    done = answered("parity", *light_double(tmp_path), "batch=[1000000000000000,3]")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [r.status for r in records_of(tmp_path)] == ["failed", "ok"]


def test_inline_runs_in_the_calling_process(tmp_path):
    done = fusebench(
        "bench", "worker=inline", "kernel=launch", "implementation=torch_eager", "time_s=0.02", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert records_of(tmp_path)[0].status == "ok" and not list(tmp_path.glob("results/*/worker-*.log"))


def test_another_interpreter_is_used_where_it_is_named(tmp_path, answered):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\ntouch {tmp_path}/used\nexec {light_python(tmp_path)} "$@"\n')
    wrapper.chmod(0o755)
    done = answered("parity", *light_double(tmp_path)[:-1], f"worker.python.torch={wrapper}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "used").exists()


def test_list_shows_what_there_is(answered):
    done = answered("list", "--json")
    found = json.loads(done.stdout)
    assert set(found["lola"]) >= {"flax", "torch_eager", "torch_compile", "triton", "jax_triton", "cuda"}
    assert found["lola"]["triton"]["variants"][:4] == ["row", "batched_row", "multirow", "multirow_ws"]
    assert found["lola"]["torch_eager"] == {"variants": ["default"], "unavailable": None, "refused": {}}


@pytest.mark.parametrize("experiment", sorted(f.stem for f in (REPOSITORY / "conf" / "experiment").glob("*.yaml")))
def test_every_experiment_composes(answered, experiment):
    done = answered("bench", f"experiment={experiment}", "--cfg", "job")
    assert done.returncode == 0 and "case:" in done.stdout


def test_an_output_of_another_shape_has_no_row_of_figures(tmp_path, answered):
    light = f"worker.python.torch={light_python(tmp_path)}"
    done = answered("parity", f"path={FIXTURES / 'faults'}", "kernel=fault", "implementation=misshapen", light)
    assert done.returncode == 1 and "wrong  " in done.stdout
    assert "nan" not in done.stdout and "max |error|" not in done.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fusebench ", {"bench", "compare", "list"}), ("fusebench com", {"compare"}), ("fusebench list ", set()), ("fusebench nosuch k", set()),
        ("fusebench parity imp", {"implementation="}), ("fusebench bench ker", {"kernel="}), ("fusebench bench -m seed=1 shape.LAY", {"shape.LAYERS="}), ("fusebench compare triton cuda fail", {"fail_slower="}),
        ("fusebench bench experiment=", {"experiment=quick", "experiment=published"}),
    ],
)  # fmt: skip
def test_the_shell_completes_the_keys_of_the_command_in_the_line(answered, monkeypatch, line, words):
    monkeypatch.setenv("COMP_LINE", line)
    done = answered("-sc", "query=bash")
    found = set(done.stdout.split())
    assert (done.returncode, done.stderr) == (0, "") and words <= found and (words or not found)
    assert "kernel." not in found


@pytest.mark.parametrize(
    ("line", "command", "passed"),
    [
        ("fusebench parity -m seed=1 --retry=failed kernel=lo", "parity", "fusebench kernel=all seed=1 kernel=lo"),
        ("fusebench compare triton cuda seed=1 ", "compare", "fusebench kernel=all seed=1 "),
        ("fusebench bench dtype=", "bench", "fusebench kernel=all dtype="),
    ],
)
def test_hydra_completes_a_line_of_its_own_keys(monkeypatch, line, command, passed):
    """Flags and sides are none, and the word that is being written comes once."""
    asked = []
    monkeypatch.setattr(completion, "run_app", lambda *arguments: asked.append(arguments) or 5)
    monkeypatch.setattr(completion, "run_compare", lambda arguments: asked.append(("compare", arguments)) or 6)
    monkeypatch.setenv("COMP_LINE", line)
    assert completion.complete(["query=bash"], schema.SCHEMAS) == (6 if command == "compare" else 5)
    assert asked == [(command, ["--shell-completion", "query=bash"])] and os.environ["COMP_LINE"] == passed
    monkeypatch.setenv("COMP_LINE", "fusebench nosuch k")
    assert completion.complete(["query=bash"], schema.SCHEMAS) == 0 and len(asked) == 1


@pytest.mark.parametrize("before", [[], ["bench"], ["compare"]])
def test_completion_is_installed_for_fusebench(answered, before):
    done = answered(*before, "-sc", "install=bash")
    assert done.returncode == 0 and done.stdout.splitlines()[-1].endswith(" hydra_bash_completion fusebench")


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["bench", "--cfg", "job"], ["list"]])
def test_a_reader_that_has_seen_enough_is_no_mistake(tmp_path, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nobody:
        command = [sys.executable, "-u", "-m", "fusebench.cli", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=ENVIRONMENT, stdout=nobody, stderr=subprocess.PIPE, timeout=300
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_has_seen_enough_does_not_change_the_exit_code(tmp_path):
    """What is wrong is on record, whether or not somebody reads the table."""
    reader, writer = os.pipe()
    os.close(reader)
    words = (f"path={FIXTURES / 'faults'}", "kernel=fault", "implementation=wrong", "batch=5,7", "-m", "device=cpu")
    with os.fdopen(writer, "w") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "fusebench.cli", "parity", *words, f"worker.python.torch={light_python(tmp_path)}"],
            cwd=tmp_path, env=ENVIRONMENT, stdout=nobody, stderr=subprocess.PIPE, timeout=300,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"")
    assert len(list(tmp_path.glob("results/*/[01]/records.jsonl"))) == 2, "no job is left out"


def test_the_command_s_own_list_of_kernels_gives_way_to_those_with_the_case(answered, monkeypatch):
    ran = []
    monkeypatch.setattr(app, "run", lambda this, cells: iter(ran.extend(cells) or ()))
    assert answered("bench", "case=token", "implementation=torch_eager").returncode == 0
    assert [(c.case.kernel, c.case.id) for c in ran] == [("lola", "token/float32/ieee")]
    assert answered("bench", "case=token", "kernel=[launch,lola]").returncode == 2, "a list that was asked for does not"


def test_a_narrow_terminal_without_unicode_shows_whole_figures(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "COLUMNS", "80")
    monkeypatch.setitem(ENVIRONMENT, "PYTHONIOENCODING", "ascii")
    words = ("kernel=double", "implementation=torch_eager", f"path={FIXTURES / 'kernels'}", "time_s=0.02", "device=cpu")
    done = fusebench("bench", *words, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.isascii(), done.stderr
    rows = table_of(done.stdout, "implementation")
    assert len(rows) == 2 and all(row["CPU time"].endswith(" us") and row["x torch_eager"] for row in rows)
    assert "left out in 80 columns: best, " in done.stdout and "yardstick" not in rows[0]
