"""What asv gets: which cells of which commit, the samples in seconds, why others are n/a, and the environment that it names."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import toys
from conftest import FIXTURES
from samples import TIMES, parity, timed, untimed

from fusebench import discovery, machine
from fusebench.discovery import Implementation, Kernel
from fusebench.records.record import Parity
from fusebench.settings import Settings
from fusebench.timing.plan import Plan
from fusebench.tracking import cells, reasons, suite, sweep

MADE = {"flax": ("default", "other"), "triton": ("row", "online"), "cuda": ("default",), "torch_eager": ("default",)}
WITHOUT_GPU = {"triton": "interpreted", "cuda": "unavailable"}


def kernel(name="padded_softmax", cases=("first", "odd", "last"), made=MADE):
    mathematics = replace(toys.kernel(None), cases={c: {"N": n} for n, c in enumerate(cases, 1)})
    described = {
        n: Implementation(
            name, n, Path(n), variants=dict.fromkeys(v, ()), without_gpu=WITHOUT_GPU.get(n, "timed"),
            broken="no.py cannot be read" if n == "broken" else "",
        )
        for n, v in made.items()
    }  # fmt: skip
    return Kernel(name, Path(name), mathematics, described)


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    for name in ("PATH", "WORDS", "THREADS", "BENCH", "HISTORY", "REASONS"):
        monkeypatch.delenv(f"FUSEBENCH_{name}", raising=False)
    for name in ("ASV_ENV_DIR", "ASV_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def here(monkeypatch):
    """A function that says on which device we are, with these kernels in the working tree and in the commit."""

    def be(device, *kernels):
        found = {k.name: k for k in kernels or [kernel()]}
        monkeypatch.setattr(machine, "gpu", lambda: {"name": "x"} if device == "cuda" else None)
        monkeypatch.setattr(discovery, "find_kernels", lambda roots: found)
        monkeypatch.setattr(sweep, "_measured", lambda name, paths: found.get(name))
        return found

    return be


@pytest.fixture
def swept(here, monkeypatch):
    """A function that runs the sweep of all that is tracked, without its cells: (outcomes, the run, its cells)."""

    def do(device, records=lambda cells: (), *kernels):
        seen = []
        here(device, *kernels)
        monkeypatch.setattr(sweep, "run", lambda this, cells: seen.extend([this, cells]) or records(cells))
        made = next(iter(suite.classes().values()))
        return made, made().setup_cache(), *seen

    return do


def params(made, method="track_latency"):
    return getattr(made, method).params


# Which cells


def ids(found):
    return list(dict.fromkeys(cell.case.id for cell in found))


@pytest.mark.parametrize(
    ("device", "names", "words", "tracked"),
    [
        ("cuda", ("first", "odd", "last"), {}, ["first/float32/ieee", "first/float16", "first/bfloat16", "odd/float32/ieee"]),
        ("cuda", ("first", "other"), {}, ["first/float32/ieee", "first/float16", "first/bfloat16"]),
        ("cuda", ("odd", "other"), {}, ["odd/float32/ieee", "odd/float16", "odd/bfloat16"]),
        ("cpu", ("first", "odd", "last"), {}, ["first/float32/ieee", "odd/float32/ieee"]),
        ("cuda", ("first", "odd"), {"dtype": ["float16"]}, ["first/float16"]),
        ("cpu", ("first", "odd"), {"dtype": ["float16"]}, ["first/float16"]),
        ("cuda", ("first", "odd", "last"), {"case": ["last", "odd"]}, ["last/float32/ieee", "last/float16", "last/bfloat16", "odd/float32/ieee"]),
        ("cpu", ("first", "odd", "last"), {"case": ["l*"]}, ["last/float32/ieee"]),
        ("cpu", ("first", "odd"), {"mode": ["backward"]}, ["first/float32/ieee/backward", "odd/float32/ieee/backward"]),
        ("cpu", ("first", "odd"), {"mode": ["all", "~forward_backward"], "case": ["odd"]}, ["odd/float32/ieee", "odd/float32/ieee/backward"]),
        ("cpu", ("first", "odd", "last"), {"case": ["odd"], "dtype": ["all", "~bfloat16"]}, ["odd/float32/ieee", "odd/float16"]),
    ],
)  # fmt: skip
def test_a_kernel_s_first_case_and_odd_are_tracked_or_what_words_choose(device, names, words, tracked):
    assert ids(cells.tracked({"padded_softmax": kernel(cases=names)}, words, device)) == tracked


def test_kernels_and_implementations_are_chosen_in_the_words_of_bench():
    kernels = {name: kernel(name) for name in ("softmax", "lola")}
    found = cells.tracked(kernels, {"kernel": ["soft*"], "implementation": ["all", "~triton"], "case": ["odd"]}, "cpu")
    assert [(c.case.kernel, c.label) for c in found] == [
        ("softmax", label) for label in ("flax", "flax:other", "cuda", "torch_eager")
    ]


def test_on_a_gpu_all_of_them_run(swept):
    made, outcomes, this, found = swept("cuda")
    four = ("first/float32/ieee", "first/float16", "first/bfloat16", "odd/float32/ieee")
    labels = ["torch_eager", "triton:row", "flax", "cuda", "triton:online", "flax:other"]
    assert params(made) == params(made, "track_parity_error") == (labels, list(four)), "one of each framework is first"
    assert {(c.case.id, c.label) for c in found} == {(case, label) for case in four for label in labels}
    assert [c.case.id for c in found] == [case for case in four for _ in range(6)], "those of one case together"
    assert this.settings == Settings("cuda", Plan(0.2), rows_seed=this.settings.rows_seed)
    assert list(this.kernels) == ["padded_softmax"] and this.folder == Path.cwd() / "run" and outcomes == {}


def test_on_a_cpu_only_what_is_timed_there_has_benchmarks(swept, capsys):
    made, _, this, found = swept("cpu")
    assert params(made) == params(made, "track_parity_error") == (["torch_eager", "flax"], ["first/float32/ieee", "odd/float32/ieee"])  # fmt: skip
    assert len(found) == 4 and this.settings.device == "cpu"
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"n/a  {cells.NOT_FIRST}: flax of padded_softmax", f"n/a  {cells.NOT_TIMED}: triton of padded_softmax",
        "n/a  needs an NVIDIA GPU: cuda of padded_softmax",
    ]  # fmt: skip
    assert [line.removeprefix("n/a  ") for line in said] == [
        line.removeprefix("n/a  ") for line in made.track_latency.pretty_source.splitlines()[1:]
    ], "what asv's pages show"


def test_what_is_asked_for_on_a_cpu_has_its_parity_error(swept, monkeypatch):
    monkeypatch.setenv("FUSEBENCH_WORDS", json.dumps({"implementation": ["triton", "flax"], "case": ["last"]}))
    made, *_ = swept("cpu")
    cases = ["first/float32/ieee", "odd/float32/ieee", "last/float32/ieee"]
    assert params(made) == (["torch_eager", "flax", "flax:other"], cases)
    assert params(made, "track_parity_error") == (
        ["torch_eager", "triton:row", "flax", "triton:online", "flax:other"], cases
    )  # fmt: skip


def test_a_case_of_many_flops_is_tracked_on_a_cpu_where_it_is_asked_for(here, monkeypatch):
    heavy = kernel()
    heavy = replace(heavy, mathematics=replace(heavy.mathematics, flops=lambda case: 1e9))
    here("cpu", heavy)
    assert params(suite.classes()["PaddedSoftmax"])[1] == ["odd/float32/ieee"]
    assert suite.suite().refused("padded_softmax", "track_latency")["padded_softmax", "flax", "first", "float32"] == (
        cells.NOT_LIGHT
    )
    monkeypatch.setenv("FUSEBENCH_WORDS", json.dumps({"case": ["first"]}))
    assert params(suite.classes()["PaddedSoftmax"])[1] == ["first/float32/ieee", "odd/float32/ieee"]


def test_a_broken_file_is_no_reason_to_be_na(swept):
    made, *_ = swept("cpu", lambda cells: (), kernel(made={"broken": ("default",)}))
    assert params(made)[0] == ["broken"]


def test_a_kernel_without_a_figure_here_has_no_benchmark(here):
    here("cpu", kernel("gpu_alone", made={"cuda": ("default",)}), kernel())
    made = suite.classes()
    assert list(made) == ["GpuAlone", "PaddedSoftmax"] and not hasattr(made["GpuAlone"], "track_latency")


def test_what_stands_in_the_history_stays(here, monkeypatch, tmp_path):
    """asv's pages have only the parameters of the last run, and that may be another machine's."""
    kept = [["'cuda'", "'torch_eager'", "'gone'"], ["'last/float16'", "'odd/float32/ieee'", "'left/float16'"]]
    (tmp_path / "benchmarks.json").write_text(
        json.dumps({"benchmarks.PaddedSoftmax.track_latency": {"params": kept}, "version": 2})
    )
    monkeypatch.setenv("FUSEBENCH_HISTORY", str(tmp_path))
    here("cpu")
    made = suite.classes()["PaddedSoftmax"]
    assert params(made) == (
        ["torch_eager", "flax", "cuda"], ["first/float32/ieee", "odd/float32/ieee", "last/float16"]
    )  # fmt: skip
    assert params(made, "track_parity_error") == (["torch_eager", "flax"], ["first/float32/ieee", "odd/float32/ieee"])


def test_only_the_cells_that_asv_is_going_to_read_run(swept, monkeypatch, capsys):
    two = [kernel("softmax"), kernel("lola")]
    monkeypatch.setenv("FUSEBENCH_BENCH", "Softmax.track_latency.*odd\nparity_error\\('flax', 'first")
    _, _, _this, found = swept("cpu", lambda cells: (), *two)
    assert [(c.case.kernel, c.case.id, c.label) for c in found] == [
        ("softmax", "odd/float32/ieee", "flax"), ("softmax", "odd/float32/ieee", "torch_eager"),
        ("softmax", "first/float32/ieee", "flax"), ("lola", "first/float32/ieee", "flax"),
    ]  # fmt: skip
    monkeypatch.setenv("FUSEBENCH_BENCH", "Lola")
    capsys.readouterr()
    assert list(swept("cpu", lambda cells: (), *two)[2].kernels) == ["lola"]
    said = "n/a  or as an earlier run of the commit left it, or `failed` if none did: what this run was not asked for\n"
    assert capsys.readouterr().out.endswith(said)


@pytest.mark.parametrize(("set_to", "device", "threads"), [("1", "cpu", 1), ("", "cpu", None), ("1", "cuda", None)])
def test_the_threads_of_the_cpu_are_those_of_the_variable(swept, monkeypatch, set_to, device, threads):
    monkeypatch.setenv("FUSEBENCH_THREADS", set_to)
    assert swept(device)[2].settings.threads == threads


# The figures


def test_a_figure_of_a_busy_machine_is_none(swept, capsys):
    def records(found):
        record = timed("flax", of=found[0].case, verdicts=Parity(parity(0.125)))
        return [replace(record, timing=replace(record.timing, waiting=0.75))]

    made, outcomes, *_ = swept("cpu", records)
    assert "n/a  machine busy, so that its figure is not kept: " in (said := capsys.readouterr().out)
    assert "make asv ARGS=threads=1" in said
    assert math.isnan(made().track_latency(outcomes, "flax", "first/float32/ieee"))
    assert "machine busy" in capsys.readouterr().out
    assert made().track_parity_error(outcomes, "flax", "first/float32/ieee") == 0.125


def test_the_samples_are_those_of_the_record_in_seconds(swept):
    def records(found):
        return [timed(c.label, of=c.case, verdicts=Parity(parity(0.123456))) for c in found[:1]]

    made, outcomes, *_ = swept("cuda", records)
    assert made().track_latency(outcomes, "flax", "first/float32/ieee") == {"samples": TIMES, "number": 1}
    assert made().track_parity_error(outcomes, "flax", "first/float32/ieee") == 0.1235, "budgets, to four digits"
    latency, error = made.track_latency, made.track_parity_error
    assert (latency.unit, latency.type, latency.version) == ("seconds", "time", "1")
    assert (error.unit, error.version) == ("budgets", "2")
    assert made.param_names == ("implementation", "case")


def test_what_the_commit_does_not_have_is_na(swept, monkeypatch, capsys):
    made, outcomes, _this, _found = swept("cuda", lambda cells: (), kernel(cases=("first", "odd")))
    older = {"padded_softmax": kernel(cases=("odd",), made={"flax": ("default",)})}
    monkeypatch.setattr(sweep, "_measured", lambda name, paths: older.get(name))
    made().setup_cache()
    assert math.isnan(made().track_latency(outcomes, "triton:row", "odd/float32/ieee"))
    assert capsys.readouterr().out.endswith("n/a: the measured commit does not have it\n")
    asked = {"padded_softmax": [("flax", "odd/float32/ieee"), ("flax", "first/float16"), ("cuda", "odd/float32/ieee")]}
    ran = []
    monkeypatch.setattr(sweep, "run", lambda this, cells: ran.extend(cells) or ())
    assert sweep.sweep(asked | {"nosuch": [("flax", "odd/float32")]}, []) == {}
    assert [(c.label, c.case.id) for c in ran] == [("flax", "odd/float32/ieee")]
    sweep.sweep({"padded_softmax": [("flax", "odd/float16/backward"), ("flax", "odd/float16")]}, [])
    assert [c.case.mode for c in ran[1:]] == ["backward", "forward"]


def test_a_kernel_py_that_is_none_costs_its_own_cells(here, monkeypatch):
    found = here("cpu")

    def measured(name, paths):
        if name == "spoilt":
            raise discovery.UsageError("spoilt/kernel.py lacks CASES")
        return found[name]

    monkeypatch.setattr(sweep, "_measured", measured)
    monkeypatch.setattr(sweep, "run", lambda this, cells: [timed("flax", of=cells[0].case)])
    pairs = [("flax", "odd/float32")]
    outcomes = sweep.sweep({"spoilt": pairs, "padded_softmax": pairs}, [])
    assert outcomes["spoilt", "flax", "odd", "float32"] == sweep.Swept("failed", "spoilt/kernel.py lacks CASES")
    assert len(outcomes) == 2


def test_what_was_added_to_an_id_later_is_the_same_series(here):
    here("cuda")
    made = suite.classes()["PaddedSoftmax"]
    outcomes = {sweep.key_of("padded_softmax", "flax", "odd/float16"): sweep._read(timed())}
    assert made().track_latency(outcomes, "flax", "odd/float16/option=new")["samples"] == TIMES
    assert sweep.key_of("k", "flax", "odd/float32/ieee") == ("k", "flax", "odd", "float32")
    assert sweep.key_of("k", "flax", "odd/float32/ieee/backward") == ("k", "flax", "odd", "float32", "backward")


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (untimed(parity=Parity(parity(0.25), timed=parity(0.5))), 0.25),
        (untimed(status="wrong", parity=Parity(parity(0.25), timed=parity(5.0))), 5.0),
        (untimed(status="wrong", parity=Parity(parity(2.0))), 2.0),
        (untimed(parity=Parity(parity(float("nan")))), None),
        (untimed(status="wrong", parity=Parity(parity(0.5, problem="the shape"))), None),
        (untimed(status="failed"), None),
    ],
)
def test_the_error_of_a_record(record, error):
    outcome = sweep._read(record)
    assert outcome.parity_error == error and outcome.status == record.status and outcome.samples == []


def test_what_went_wrong_fails_with_its_traceback(here):
    here("cuda")
    made = suite.classes()["PaddedSoftmax"]
    key = ("padded_softmax", "flax", "odd", "float16")
    outcomes = {key: sweep._read(untimed(status="failed", reason="raised", traceback="at line 3"))}
    for method in (made().track_latency, made().track_parity_error):
        with pytest.raises(RuntimeError) as error:
            method(outcomes, "flax", "odd/float16")
        assert str(error.value) == "failed: raised\nat line 3"
    outcomes = {key: sweep._read(untimed(status="crashed", reason="gone"))}
    with pytest.raises(RuntimeError, match=r"^crashed: gone\n$"):
        made().track_latency(outcomes, "flax", "odd/float16")


# Why cells are n/a


def test_reasons_are_told_together():
    found = {
        ("softmax", "cuda:row", "odd", "float32"): "needs an NVIDIA GPU",
        ("softmax", "liger", "odd", "float32"): "needs an NVIDIA GPU",
        ("softmax", "cuda", "odd", "float32"): "needs an NVIDIA GPU",
        ("lola", "liger", "odd", "float32"): "needs an NVIDIA GPU",
        ("lola", "flax", "odd", "float32"): "it is slow",
    }
    assert reasons.together(found) == [
        "needs an NVIDIA GPU: cuda of softmax; liger of softmax, lola",
        "it is slow: flax of lola",
    ]


def test_reasons_of_several_runs_of_a_commit_lie_in_one_file(tmp_path):
    file = tmp_path / "machine" / "abc.na.txt"
    one, two, three = (("k", label, "odd", "float32") for label in ("a", "b", "c"))
    reasons.keep(file, {one: "busy", two: "needs\na GPU"}, {})
    assert file.read_text() == "k\ta\todd\tfloat32\tbusy\nk\tb\todd\tfloat32\tneeds a GPU\n"
    reasons.keep(file, {three: "slow"}, {one: "measured"})
    assert [line.split("\t")[1::3] for line in file.read_text().splitlines()] == [["b", "needs a GPU"], ["c", "slow"]]


def test_the_sweep_leaves_its_reasons_in_the_file(swept, monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEBENCH_REASONS", str(tmp_path / "r"))
    swept(
        "cpu",
        lambda found: [
            untimed("flax", "skipped", of=found[0].case, reason="of its own"),
            timed("torch_eager", of=found[0].case),
        ],
    )
    lines = [line.split("\t") for line in (tmp_path / "r").read_text().splitlines()]
    assert ["padded_softmax", "flax", "first", "float32", "of its own"] in lines
    assert ["padded_softmax", "cuda", "first", "float32", "needs an NVIDIA GPU"] in lines
    assert not [line for line in lines if line[1] == "torch_eager"]


# The classes


def test_every_kernel_has_a_class_and_one_sweep_is_enough(here):
    here("cuda", kernel("padded_softmax"), kernel("lola"))
    made = suite.classes()
    assert list(made) == ["PaddedSoftmax", "Lola"]
    assert len({c.setup_cache for c in made.values()}) == 1 and made["Lola"].setup_cache.timeout == 4 * 3600
    assert made["Lola"].timeout == 300


# The measured commit


def test_the_kernels_of_the_commit_are_measured(tmp_path, monkeypatch):
    found = sweep._measured("launch", [])
    assert found.folder == discovery.HOME / "launch", "ours, without a checkout"
    checkout = tmp_path / "project" / "implementations" / "double"
    checkout.parent.mkdir(parents=True)
    checkout.symlink_to(FIXTURES / "kernels" / "double")
    monkeypatch.setenv("ASV_ENV_DIR", str(tmp_path))
    assert sweep._measured("double", []).folder == checkout
    assert sweep._measured("launch", []) is None, "the commit does not have it"


def test_folders_of_one_s_own_join_as_they_are_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("ASV_ENV_DIR", str(tmp_path))
    monkeypatch.setenv("ASV_CONF_DIR", str(FIXTURES))
    monkeypatch.setenv("FUSEBENCH_PATH", os.pathsep.join(["kernels", "", str(FIXTURES / "faults")]))
    assert suite.paths() == [FIXTURES / "kernels", FIXTURES / "faults"]
    assert sweep._measured("double", suite.paths()).folder == FIXTURES / "kernels" / "double"
    assert sweep._measured("nosuch", suite.paths()) is None
    ran = []
    monkeypatch.setattr(machine, "gpu", lambda: None)
    monkeypatch.setattr(sweep, "run", lambda this, cells: ran.extend([this, cells]) or ())
    sweep.sweep({"double": [("torch_eager:plus", "odd/float32")]}, suite.paths())
    assert ran[0].roots == suite.paths() and [c.label for c in ran[1]] == ["torch_eager:plus"]
    monkeypatch.delenv("ASV_CONF_DIR")
    monkeypatch.setenv("FUSEBENCH_PATH", "x")
    assert suite.paths() == [Path("x")]


# asv's environment


@pytest.fixture
def environment(monkeypatch, tmp_path):
    from fusebench.tracking import environment

    monkeypatch.setattr(machine, "gpu", lambda: {"name": "NVIDIA H200"})
    monkeypatch.setattr(
        machine,
        "packages",
        lambda: {"torch": "2.11", "jax": "0.10", "numpy": "2", "jax-triton": "0.3", "triton": "3.6", "flax": "1"},
    )
    monkeypatch.chdir(tmp_path)
    conf = SimpleNamespace(env_dir=str(tmp_path / "env"), repo_subdir="", install_command=None, build_command=None, uninstall_command=None, build_cache_size=0,
                           default_benchmark_timeout=60, install_timeout=60, pythons=[], matrix={}, environment_type="checkout", repo=str(tmp_path), project="x", results_dir="results")  # fmt: skip
    return environment, lambda python=environment.PYTHON: environment.Checkout(conf, python, {}, {})


def test_the_environment_is_this_python_and_this_device(environment):
    module, make = environment
    made = make()
    assert (
        "{}.{}".format(*sys.version_info) == module.PYTHON
        and module.Checkout.matches(module.PYTHON)
        and not module.Checkout.matches("2.7")
    )
    assert (
        made.name == f"checkout-py{module.PYTHON}-NVIDIA-H200"
        and made.dir_name == "checkout"
        and made.installed_commit_hash is None
    )
    assert made.requirements == {
        "device": "NVIDIA H200",
        "torch": "2.11",
        "jax": "0.10",
        "jax-triton": "0.3",
        "triton": "3.6",
    }
    assert made.find_executable("python") == sys.executable
    with pytest.raises(module.EnvironmentUnavailable, match=f"asv runs in Python {module.PYTHON}, not 2.7"):
        make("2.7")


def test_without_a_gpu_the_device_is_the_cpu(environment, monkeypatch):
    monkeypatch.setattr(machine, "gpu", lambda: None)
    assert environment[1]().device == "CPU"


def test_figures_of_another_number_of_threads_are_a_series_of_their_own(environment, monkeypatch):
    module, make = environment
    monkeypatch.setattr(machine, "gpu", lambda: None)
    monkeypatch.setenv("FUSEBENCH_THREADS", "1")
    made = make()
    assert made.requirements["device"] == "CPU threads=1" and made.name.startswith(
        f"checkout-py{module.PYTHON}-CPU-threads"
    )


def test_changes_that_are_not_committed_are_told(environment, monkeypatch, tmp_path):
    module, make = environment
    warned, changed = [], " M implementations/lola/flax.py\n"
    monkeypatch.setattr(module.log, "warning", warned.append)

    def run(command, capture_output, text):
        assert capture_output and text
        return SimpleNamespace(stdout=changed if command[-1] == "implementations" else "")

    monkeypatch.setattr(module.subprocess, "run", run)
    made = make()
    assert (
        made.check_presence()
        and Path(made._path).is_dir()
        and warned == ["Not committed, so not measured:\n M implementations/lola/flax.py"]
    )
    changed = ""
    warned.clear()
    assert made.check_presence() and not warned


def test_a_checkout_is_what_is_installed_and_our_python_runs(environment, monkeypatch, tmp_path):
    module, make = environment
    done, said = [], []
    monkeypatch.setattr(module.Checkout, "checkout_project", lambda self, *arguments: done.append(arguments))

    def run_executable(self, *arguments, env, **options):
        done.append((arguments, env, options))
        return "ok  lola\nn/a  needs a GPU: cuda of lola\n", "", 0

    monkeypatch.setattr(module.Checkout, "run_executable", run_executable)
    monkeypatch.setattr(module.log, "info", lambda line, reserve_space=False: said.append(line))
    monkeypatch.setattr(
        sys, "argv", ["asv", "run", "--bench", "Lola", "HEAD^!", "-b", "Shcsa", "--bench=x y", "--quick"]
    )
    made = make()
    made.install_project("conf", "repo", "abc")
    made.run(["-m", "x"], timeout=3, env={"A": "b"})
    assert done[0] == ("repo", "abc") and done[1][0] == ("python", ["-m", "x"]) and done[1][2] == {"timeout": 3}
    own = {"FUSEBENCH_BENCH": "Lola\nShcsa\nx y", "FUSEBENCH_HISTORY": str(tmp_path / "results")}
    assert done[1][1] == {"A": "b"} | own and not said
    made._global_env_vars["ASV_COMMIT"] = "0123456789abcdef"
    monkeypatch.setattr(module.Machine, "get_unique_machine_name", staticmethod(lambda: "me"))
    made.run(["script", "setup_cache", "x"], dots=False)
    assert done[2][2] == {"dots": True} and said == ["n/a  needs a GPU: cuda of lola", "The sweep"]
    assert done[2][1]["FUSEBENCH_REASONS"] == f"{tmp_path}/results/me/01234567-{made.name}.na.txt"


@pytest.mark.parametrize("known", [True, False])
def test_asv_is_told_of_this_machine_where_nobody_has(environment, monkeypatch, known):
    module, _ = environment
    saved = []

    def load(name):
        if not known:
            raise module.util.UserError("no")

    monkeypatch.setattr(module.Machine, "get_unique_machine_name", staticmethod(lambda: "me"))
    monkeypatch.setattr(module.Machine, "get_defaults", staticmethod(lambda: {"cpu": "x"}))
    monkeypatch.setattr(module.MachineCollection, "load", staticmethod(load))
    monkeypatch.setattr(module.MachineCollection, "save", staticmethod(lambda *arguments: saved.append(arguments)))
    module.setup()
    assert saved == ([] if known else [("me", {"cpu": "x"})])
