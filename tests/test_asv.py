"""The asv suite: a class for every kernel, the commit's kernels under the working tree's harness, our samples' statistics."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys

import pytest
import samples
from conftest import FIXTURES
from test_command_line import REPOSITORY

from fusebench import discovery, machine
from fusebench.cli import main
from fusebench.commands import asv
from fusebench.discovery import HOME
from fusebench.records.record import Parity
from fusebench.tracking import suite, sweep


def command(*arguments, cwd, **environment):
    """Runs a command as a user without a terminal or GPU does, and returns what it printed; it must end well."""
    env = os.environ | {"HOME": str(cwd.parent), "CUDA_VISIBLE_DEVICES": "", "FUSEBENCH_PATH": "", **environment}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True}
    done = subprocess.run([*map(str, arguments)], cwd=cwd, env=env, timeout=300, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def discover(cwd, **environment):
    """The benchmarks that asv finds in suites/, by name; `cwd` is not the repository, as it is not when asv runs them."""
    command(
        sys.executable, "-m", "asv.benchmark", "discover", REPOSITORY / "suites", "found.json", cwd=cwd, **environment
    )
    return {b["name"]: b for b in json.loads((cwd / "found.json").read_text())}


def test_every_kernel_is_a_class_and_its_first_eight_lines_are_one_of_each_framework(tmp_path):
    """asv's pages draw at first eight values of the first parameter, and one of the second."""
    found = discover(tmp_path)
    kernels = [f.parent.name for f in discovery.HOME.glob("*/kernel.py")]
    names = {k: "".join(word.capitalize() for word in k.split("_")) for k in kernels}
    assert set(found) == {f"benchmarks.{n}.track_{t}" for n in names.values() for t in ("latency", "parity_error")}
    assert len({b["setup_cache_key"] for b in found.values()}) == 1, "one sweep"
    lola = found["benchmarks.Lola.track_latency"]
    assert lola["params"] == [
        ["'torch_eager'", "'torch_compile'", "'flax:module'", "'cublas'"], ["'odd/float32/ieee'"]
    ]  # fmt: skip
    assert found["benchmarks.Softmax.track_latency"]["params"][1] == ["'published/float32'", "'odd/float32'"]
    assert (lola["type"], lola["unit"], lola["version"]) == ("time", "seconds", "1")  # or the history is thrown away
    assert lola["code"].startswith("class Lola:\n    lola: the time of a call, ")
    assert "implementation=: cuda, jax_triton, triton of lola" in lola["code"], "which asv's pages show"


def test_a_kernel_outside_the_repository_joins_by_its_folder_alone(tmp_path):
    shutil.copytree(FIXTURES / "kernels" / "double", tmp_path / "mine" / "twice_as_much")
    for path in (str(tmp_path / "mine"), "mine"):  # asv's processes run elsewhere: relative to where asv was started
        found = discover(tmp_path, FUSEBENCH_PATH=path, ASV_CONF_DIR=str(tmp_path))
        assert found["benchmarks.TwiceAsMuch.track_latency"]["params"] == [
            ["'torch_eager:plus'"], ["'small/float32'", "'odd/float32'"]
        ]  # fmt: skip
        assert "benchmarks.Lola.track_latency" in found


def test_make_asv_takes_the_words_of_bench(tmp_path):
    """By a make that only shows what it would do."""
    words = 'kernel=soft* implementation=[all,~cuda] threads=1 "HEAD~1^!"'
    (done,) = (line for line in make("asv", f"ARGS={words}", cwd=tmp_path) if "fusebench asv" in line)
    assert done == f".venv/bin/fusebench asv {words}"


# What asv is called with


@pytest.fixture
def called(tmp_path, monkeypatch, capsys):
    """A function that runs the command where asv is only looked at: exit code, asv's arguments and variables, and what it told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "gpu", lambda: None)
    monkeypatch.setattr(discovery, "HOME", FIXTURES / "kernels")
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith("FUSEBENCH_")})
    (tmp_path / "asv.conf.json").touch()

    def call(*arguments):
        asked = []
        monkeypatch.setattr(asv.subprocess, "call", lambda words: asked.extend(words) or 3)
        code = main(["asv", *arguments])
        own = {k: v for k, v in os.environ.items() if k.startswith("FUSEBENCH_")}
        return code, asked[5:], own, capsys.readouterr().err

    return call


def test_without_words_asv_runs_all(called):
    assert called("HEAD~3..HEAD", "--quick") == (3, ["HEAD~3..HEAD", "--quick"], {}, "")


def test_cells_are_chosen_in_the_words_of_bench(called):
    code, arguments, variables, _ = called("kernel=doub*", "implementation=[all,~torch_eager:times]", "case=odd", "NEW")
    name = r"benchmarks\.Double\.track_{}\(('torch_eager:plus', 'odd/float32')\)"
    assert code == 3 and arguments[0::2] == ["--bench", "--bench", "NEW"]
    for pattern, method in zip(arguments[1::2], ("latency", "parity_error"), strict=True):
        assert re.search(pattern, f"benchmarks.Double.track_{method}('torch_eager:plus', 'odd/float32')"), name
        assert not re.search(pattern, f"benchmarks.Double.track_{method}('torch_eager:times', 'odd/float32')")
        assert not re.search(pattern, f"benchmarks.Double.track_{method}('torch_eager:plus', 'small/float32')")
    assert json.loads(variables["FUSEBENCH_WORDS"]) == {
        "kernel": ["doub*"], "implementation": ["all", "~torch_eager:times"], "case": ["odd"]
    }  # fmt: skip


def test_threads_and_folders_of_one_s_own(called, tmp_path):
    (tmp_path / "mine" / "mine").mkdir(parents=True)
    shutil.copytree(FIXTURES / "kernels" / "double", tmp_path / "mine" / "twice")
    code, arguments, variables, _ = called("path=mine", "threads=1", "kernel=twice")
    assert code == 3 and "Twice" in arguments[1]
    assert (variables["FUSEBENCH_PATH"], variables["FUSEBENCH_THREADS"]) == (str(tmp_path / "mine"), "1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kernal=double"], "unknown key 'kernal': did you mean kernel? There are: case, dtype, implementation, kernel, mode, path, threads"),
        (["kernel=doubel"], "unknown kernel 'doubel': did you mean double?"),
        (["kernel=x*"], "no kernel matches 'x*'"),
        (["kernel=double", "case=smal"], "unknown case 'smal' of double: did you mean small?"),
        (["implementation=torch_eager:pluss"], "unknown variant 'pluss' of torch_eager: did you mean plus?"),
        (["implementation=[torch_eager,~torch_eager]"], "implementation=[torch_eager,~torch_eager] leaves none"),
        (["dtype=float61"], "unknown dtype 'float61': did you mean float16?"),
        (["path=nosuch"], "path=nosuch: no such folder"), (["path=."], "no kernel there; expected DIR/<kernel>/kernel.py"),
        (["threads=0"], "threads"), (["kernel="], "kernel=: expected a value behind ="),
        (["kernel=double", "--bench", "x"], "kernel= and --bench both choose what runs: leave out one of them"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_answered_by_one_line(called, arguments, said):
    code, asked, _, told = called(*arguments)
    assert (code, asked) == (2, []) and told.startswith("fusebench: ") and said in told and told.count("\n") == 1


def test_what_has_no_figure_here_is_said_before_asv_runs(called, monkeypatch):
    monkeypatch.setattr(discovery, "HOME", HOME)
    code, asked, _, told = called("kernel=softmax", "implementation=liger")
    assert (code, asked) == (2, [])
    assert told == "fusebench: nothing of that has a figure on this machine: needs an NVIDIA GPU: liger of softmax\n"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for it")
def test_a_server_of_a_killed_asv_ends_with_it():
    """The process that imports the suite, as asv's server does."""
    suites = f"import time, runpy; runpy.run_path({str(REPOSITORY / 'suites' / 'benchmarks.py')!r})"
    server = f"{suites}; print('imported', flush=True); time.sleep(3); print('lives on')"
    asv = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {server!r}])"
    with subprocess.Popen([sys.executable, "-c", asv], stdout=subprocess.PIPE) as killed:
        assert killed.stdout.readline() == b"imported\n"
        killed.kill()
        assert killed.stdout.read() == b""


def test_it_runs_in_the_folder_of_the_repository(called, tmp_path):
    (tmp_path / "asv.conf.json").unlink()
    assert called()[3] == "fusebench: asv.conf.json is not here: fusebench asv runs in the folder of the repository\n"


def make(*arguments, cwd):
    stamp = ("-o", ".venv/.installed", f"--directory={REPOSITORY}", "--no-print-directory")
    return command("make", "--dry-run", *stamp, *arguments, cwd=cwd).splitlines()


def record(status, first=0.5, timed=None, problem="", **more):
    verdicts = Parity(samples.parity(first, problem=problem), timed=timed and samples.parity(timed))
    return samples.untimed("triton", status, reason="why", parity=verdicts, **more)


@pytest.mark.parametrize(
    ("cell", "latency", "parity_error"),
    [
        (record("ok", timing=samples.timing([1.0, 2.0])), {"samples": [1.0, 2.0], "number": 1}, 0.5),
        (record("skipped"), math.nan, 0.5),  # interpreted: right, but never timed
        (samples.untimed("triton", "skipped", reason="needs an NVIDIA GPU"), math.nan, math.nan),
        (record("wrong", 3.0), RuntimeError, 3.0),
        (record("wrong", timed=4.0), RuntimeError, 4.0),
        (record("wrong", math.inf), RuntimeError, RuntimeError),
        (record("wrong", math.inf, problem="the shape is wrong"), RuntimeError, RuntimeError),
        (samples.untimed("triton", "crashed", reason="SIGSEGV"), RuntimeError, RuntimeError),
        (None, math.nan, math.nan),  # the measured commit does not have it
    ],
)
def test_what_cannot_be_measured_is_na_and_what_went_wrong_fails(monkeypatch, cell, latency, parity_error):
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "x"})
    monkeypatch.setattr(discovery, "HOME", FIXTURES / "kernels")
    outcomes = {("double", "triton", "odd", "float32"): sweep._read(cell)} if cell else {}
    benchmarks = suite.classes()["Double"]()
    for method, expected in ((benchmarks.track_latency, latency), (benchmarks.track_parity_error, parity_error)):
        if expected is RuntimeError:
            with pytest.raises(RuntimeError, match=cell.reason):
                method(outcomes, "triton", "odd/float32/ieee")
        else:
            got = method(outcomes, "triton", "odd/float32/ieee")
            assert got == expected or (math.isnan(got) and math.isnan(expected))


def test_asv_measures_the_kernels_of_each_commit_and_keeps_the_statistics_of_our_samples(tmp_path):
    """About 10 s. Two commits: in the second, one variant sleeps, the other is gone, and the harness is broken."""
    repository = tmp_path / "repository"
    kernel = repository / "implementations" / "double"
    shutil.copytree(FIXTURES / "kernels" / "double", kernel)
    for folder in ("fusebench", "suites"):
        shutil.copytree(REPOSITORY / folder, repository / folder, symlinks=True)
    shutil.copy(REPOSITORY / "asv.conf.json", repository)
    (repository / ".gitignore").write_text(".asv/\n__pycache__/\n")

    def git(*arguments):
        return command("git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments, cwd=repository)

    def asv(*arguments):
        return command(sys.executable, "-m", "asv", *arguments, cwd=repository)

    def run(*words):
        return command(sys.executable, "-m", "fusebench", "asv", *words, cwd=repository)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "fast")
    sleeping = 'import time\n\nBACKEND = "torch"\nVARIANTS = {"plus": ()}\n\n\ndef build(case, variant, device):\n'
    sleeping += "    return lambda x: (time.sleep(0.002), x + x)[1]\n"
    harness, implementation = repository / "fusebench" / "run.py", kernel / "torch_eager.py"
    good, fast = harness.read_text(), implementation.read_text()
    harness.write_text("raise SystemExit('this is not the harness of the working tree')\n")
    implementation.write_text(sleeping)
    git("commit", "-qam", "slow")
    harness.write_text(good)
    implementation.write_text(fast)

    said = run("kernel=double", "dtype=all")
    assert "implementations/double/torch_eager.py" in said  # which differs from the commit, and is not measured
    run("kernel=double", "dtype=all", "HEAD~1^!")
    assert "n/a: the measured commit does not have it" in said, "which asv shows of each cell"

    (results,) = (repository / ".asv" / "results").glob(f"*/{git('rev-parse', 'HEAD')[:8]}-*.json")
    stored = json.loads(results.read_text())
    latency = dict(zip(stored["result_columns"], stored["results"]["benchmarks.Double.track_latency"], strict=False))
    assert latency["params"] == [
        ["'torch_eager:plus'", "'torch_eager:times'"],
        ["'small/float32'", "'odd/float32'", "'small/float16'", "'small/bfloat16'"],
    ]
    plus, times = latency["result"][0], latency["result"][4]  # four cases each
    assert plus > 0.002 and math.isnan(times)
    assert latency["stats_repeat"][0] >= 5 and latency["stats_number"][0] == 1
    assert 0.002 < latency["stats_q_25"][0] <= plus <= latency["stats_q_75"][0]
    assert latency["stats_ci_99_a"][0] <= plus <= latency["stats_ci_99_b"][0]
    assert stored["params"]["torch"] and stored["params"]["device"]

    shown = asv("show", "HEAD")
    assert "benchmarks.Double.track_latency" in shown and "benchmarks.Double.track_parity_error" in shown
    changed = [line for line in asv("compare", "HEAD~1", "HEAD", "--only-changed").splitlines() if line[:3] == "| +"]
    assert changed and all("track_latency('torch_eager:plus'" in line for line in changed)
    asv("publish")
    index = json.loads((repository / ".asv" / "html" / "index.json").read_text())
    assert len(index["revision_to_hash"]) == 2 and "benchmarks.Double.track_latency" in index["benchmarks"]
