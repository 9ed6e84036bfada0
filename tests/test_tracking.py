"""What asv gets: which cells of which commit, the samples in seconds, and the environment that it names."""

from __future__ import annotations

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
from fusebench.tracking import suite


def kernel(name="padded_softmax", cases=("first", "odd", "last"), implementations=None):
    mathematics = replace(toys.kernel(None), cases={c: {"N": n} for n, c in enumerate(cases, 1)})
    made = implementations or {"flax": ("default",), "triton": ("row", "online")}
    described = {n: Implementation(name, n, Path(n), variants=dict.fromkeys(v, ())) for n, v in made.items()}
    return Kernel(name, Path(name), mathematics, described)


@pytest.fixture
def swept(monkeypatch):
    """Sweeps the kernel without running it: (outcomes, the run, its cells)."""

    def sweep(gpu, records=lambda cells: [], the_kernel=None):
        seen = []
        the_kernel = the_kernel or kernel()
        monkeypatch.setattr(machine, "gpu", lambda: {"name": "x"} if gpu else None)
        monkeypatch.setattr(suite, "_measured", lambda name: (the_kernel, [Path("roots"), name]))
        monkeypatch.setattr(suite, "run", lambda this, cells: seen.extend([this, cells]) or records(cells))
        return suite.sweep("padded_softmax"), *seen

    return sweep


# Which cells


def test_a_kernel_s_first_case_is_tracked_in_every_dtype_and_odd_in_float32():
    assert [c.id for c in suite._cases(kernel())] == [
        "first/float32/ieee",
        "first/float16",
        "first/bfloat16",
        "odd/float32/ieee",
    ]
    assert [c.id for c in suite._cases(kernel(cases=("first", "other")))] == [
        "first/float32/ieee",
        "first/float16",
        "first/bfloat16",
    ]
    assert [c.id for c in suite._cases(kernel(cases=("odd", "other")))] == [
        "odd/float32/ieee",
        "odd/float16",
        "odd/bfloat16",
    ]


def test_on_a_gpu_all_of_them_run(swept):
    outcomes, this, cells = swept(True)
    assert [(c.case.id, c.label) for c in cells] == [
        (case, label) for case in ("first/float32/ieee", "first/float16", "first/bfloat16", "odd/float32/ieee") for label in ("flax", "triton:row", "triton:online")
    ]  # fmt: skip
    assert this.settings == Settings("cuda", Plan(0.2), rows_seed=this.settings.rows_seed)
    assert this.roots == [Path("roots"), "padded_softmax"]
    assert list(this.kernels) == ["padded_softmax"] and this.folder == Path.cwd() / "run" and len(outcomes) == 12


def test_on_a_cpu_16_bit_dtypes_are_na(swept):
    outcomes, this, cells = swept(False)
    assert {c.case.dtype for c in cells} == {"float32"} and this.settings.device == "cpu"
    assert outcomes["flax", "first", "float16"] == suite.Outcome("skipped", "16-bit dtypes are tracked on a GPU")


@pytest.mark.parametrize(("set_to", "gpu", "threads"), [("1", False, 1), ("", False, None), ("1", True, None)])
def test_the_threads_of_the_cpu_are_those_of_the_variable(swept, monkeypatch, set_to, gpu, threads):
    monkeypatch.setenv("FUSEBENCH_THREADS", set_to)
    assert swept(gpu)[1].settings.threads == threads


def test_a_figure_of_a_busy_machine_is_none(swept, capsys):
    def records(cells):
        record = timed(cells[0].label, of=cells[0].case, verdicts=Parity(parity(0.125)))
        return [replace(record, timing=replace(record.timing, waiting=0.75))]

    outcomes, *_ = swept(False, records)
    benchmarks = suite.Benchmarks()
    assert math.isnan(benchmarks.track_latency(outcomes, "flax", "first/float32/ieee"))
    assert "machine busy" in (said := capsys.readouterr().out) and "make asv ARGS=threads=1" in said
    assert benchmarks.track_parity_error(outcomes, "flax", "first/float32/ieee") == 0.125


def test_the_samples_are_those_of_the_record_in_seconds(swept):
    def records(cells):
        return [timed(c.label, of=c.case, verdicts=Parity(parity(0.123456))) for c in cells[:1]]

    outcomes, *_ = swept(True, records)
    benchmarks = suite.Benchmarks()
    assert benchmarks.track_latency(outcomes, "flax", "first/float32/ieee") == {"samples": TIMES, "number": 1}
    assert benchmarks.track_parity_error(outcomes, "flax", "first/float32/ieee") == 0.1235, "budgets, to four digits"
    assert (benchmarks.track_latency.unit, benchmarks.track_latency.type, benchmarks.track_latency.version) == (
        "seconds",
        "time",
        "1",
    )
    assert (benchmarks.track_parity_error.unit, benchmarks.track_parity_error.version) == ("budgets", "2")
    assert suite.Benchmarks.param_names == ("implementation", "case")


def test_a_kernel_that_the_commit_does_not_have_is_na(monkeypatch, capsys):
    monkeypatch.setattr(suite, "_measured", lambda name: (None, []))
    assert suite.sweep("lola") == {}
    assert math.isnan(suite.Benchmarks().track_latency({}, "flax", "odd/float32/ieee"))
    assert capsys.readouterr().out == "n/a: the measured commit does not have it\n"


def test_what_was_added_to_an_id_later_is_the_same_series():
    outcomes = {suite._key("flax", "odd/float16"): suite._read(timed())}
    assert suite.Benchmarks().track_latency(outcomes, "flax", "odd/float16/option=new")["samples"] == TIMES
    assert suite._key("flax", "odd/float32/ieee") == ("flax", "odd", "float32")


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
    outcome = suite._read(record)
    assert outcome.parity_error == error and outcome.status == record.status and outcome.samples == []


def test_what_went_wrong_fails_with_its_traceback():
    outcomes = {
        ("flax", "odd", "float16"): suite._read(untimed(status="failed", reason="raised", traceback="at line 3"))
    }
    for method in (suite.Benchmarks().track_latency, suite.Benchmarks().track_parity_error):
        with pytest.raises(RuntimeError) as error:
            method(outcomes, "flax", "odd/float16")
        assert str(error.value) == "failed: raised\nat line 3"
    outcomes = {("flax", "odd", "float16"): suite._read(untimed(status="crashed", reason="gone"))}
    with pytest.raises(RuntimeError, match=r"^crashed: gone\n$"):
        suite.Benchmarks().track_latency(outcomes, "flax", "odd/float16")


# The classes


def test_every_kernel_has_a_class_with_its_own_cache(monkeypatch):
    asked = []
    monkeypatch.setattr(discovery, "find_kernels", lambda roots: {n: kernel(n) for n in ("padded_softmax", "lola")})
    monkeypatch.setattr(suite, "sweep", lambda name: asked.append(name) or {"of": name})
    made = suite.classes()
    assert list(made) == ["PaddedSoftmax", "Lola"] and all(issubclass(c, suite.Benchmarks) for c in made.values())
    assert made["Lola"].params == (
        ["flax", "triton:row", "triton:online"],
        ["first/float32/ieee", "first/float16", "first/bfloat16", "odd/float32/ieee"],
    )
    assert made["PaddedSoftmax"]().setup_cache() == {"of": "padded_softmax"} and asked == ["padded_softmax"]
    modules = {c.setup_cache.__module__ for c in made.values()}
    assert modules == {"fusebench.tracking.suite.padded_softmax", "fusebench.tracking.suite.lola"} <= set(sys.modules)
    assert made["Lola"].setup_cache.timeout == 4 * 3600 and suite.Benchmarks.timeout == 300


# The measured commit


def test_the_kernels_of_the_commit_are_measured(tmp_path, monkeypatch):
    monkeypatch.delenv("FUSEBENCH_PATH", raising=False)
    monkeypatch.delenv("ASV_ENV_DIR", raising=False)
    found, roots = suite._measured("launch")
    assert found.folder == discovery.HOME / "launch" and roots == [discovery.HOME / "launch"], (
        "ours, without a checkout"
    )
    checkout = tmp_path / "project" / "implementations" / "double"
    checkout.parent.mkdir(parents=True)
    checkout.symlink_to(FIXTURES / "kernels" / "double")
    monkeypatch.setenv("ASV_ENV_DIR", str(tmp_path))
    assert suite._measured("double")[0].folder == checkout
    assert suite._measured("launch") == (None, []), "the commit does not have it"


def test_folders_of_one_s_own_join_as_they_are_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("ASV_ENV_DIR", str(tmp_path))
    monkeypatch.setenv("ASV_CONF_DIR", str(FIXTURES))
    monkeypatch.setenv("FUSEBENCH_PATH", os.pathsep.join(["kernels", "", str(FIXTURES / "faults")]))
    assert suite._paths() == [FIXTURES / "kernels", FIXTURES / "faults"]
    found, roots = suite._measured("double")
    assert found.folder == FIXTURES / "kernels" / "double" and roots == [FIXTURES / "kernels", FIXTURES / "faults"]
    assert suite._measured("nosuch")[0] is None
    monkeypatch.delenv("ASV_CONF_DIR")
    monkeypatch.setenv("FUSEBENCH_PATH", "x")
    assert suite._paths() == [Path("x")]


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
                           default_benchmark_timeout=60, install_timeout=60, pythons=[], matrix={}, environment_type="checkout", repo=str(tmp_path), project="x")  # fmt: skip
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


def test_a_checkout_is_what_is_installed_and_our_python_runs(environment, monkeypatch):
    module, make = environment
    done = []
    monkeypatch.setattr(module.Checkout, "checkout_project", lambda self, *arguments: done.append(arguments))
    monkeypatch.setattr(
        module.Checkout, "run_executable", lambda self, *arguments, **options: done.append((arguments, options))
    )
    made = make()
    made.install_project("conf", "repo", "abc")
    made.run(["-m", "x"], timeout=3)
    assert done == [("repo", "abc"), (("python", ["-m", "x"]), {"timeout": 3})]


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
