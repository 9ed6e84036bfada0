"""Kernels of older commits run on today's harness: each version of the contract has a small frozen folder of them in fixtures/."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import shutil
import subprocess

import pytest
import torch
from conftest import DEVICE, FIXTURES

from fusebench import discovery, launchers
from fusebench.cases import make_case
from fusebench.comparison import revision, verdicts
from fusebench.contract import DTYPES, Device
from fusebench.errors import UsageError
from fusebench.records import store
from fusebench.records.record import Record

VERSION1 = FIXTURES / "version1"
OLD = "034e026"  # the last commit of version 1
VERSION2 = """
BACKEND = "torch"
VARIANTS = {"default": ()}
TUNABLES = {"default": {"chunk": (64, 128)}}


def config(case, variant, device):
    return {"chunk": 64}


def build(case, variant, device, config):
    return lambda x: x * 0.5
"""
# what kernels of each version call, and with which arguments, in this order
NAMES = {
    1: {
        "fusebench.backends.cuda.Program": ("file", "name", "defines"),
        "fusebench.backends.cuda.Launch": ("program", "grid", "block", "shared_memory", "boxes"),
        "fusebench.backends.jax_triton.triton_call": (
            "args", "kernel", "out_shape", "grid", "num_warps", "num_stages", "compute_capability", "input_output_aliases", "meta",
        ),
    },
    2: {
        "fusebench.launchers.Program": ("file", "name", "defines"),
        "fusebench.launchers.Launcher": ("program", "grid", "block", "shared_memory", "boxes", "dtypes"),
        "fusebench.launchers.triton_call": ("arguments", "options"),
    },
    3: {
        "fusebench.launchers.Launcher.returning": ("self", "outputs", "numbers", "absent"),
        "fusebench.launchers.TritonLauncher": ("queue", "grid"),
        "fusebench.launchers.TritonLauncher.returning": ("self", "types", "shapes", "numbers"),
    },
    4: {"fusebench.launchers.Launcher": ("program", "grid", "block", "shared_memory", "boxes", "dtypes", "overlaps")},
    5: {"fusebench.launchers.capability": ("tensor",)},
    6: {"fusebench.launchers.chained": ("built",)},
}  # fmt: skip


@pytest.mark.parametrize(("version", "name"), [(version, name) for version in NAMES for name in NAMES[version]])
def test_what_a_version_of_the_contract_has_is_still_there(version, name):
    parameters = tuple(inspect.signature(pkgutil.resolve_name(name)).parameters)
    known = NAMES[version][name]
    assert parameters[: len(known)] == known, "kernels of that version call it so: add at the end, or keep the old name"
    assert version <= launchers.VERSION == max(NAMES)


def test_implementations_use_nothing_else_of_the_harness():
    used = set()
    for file in discovery.HOME.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names if alias.name.split(".")[0] == "fusebench"}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fusebench":
                used |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert used == {f"fusebench.launchers.{name}" for name in launchers.__all__ if name != "VERSION"}


def test_kernels_of_version_1_run_in_todays_workers(tmp_path, answered):
    done = answered("parity", "kernel=halved", "implementation=all", "dtype=all", "inputs=plain", f"path={VERSION1}")
    assert done.returncode == 0, done.stdout + done.stderr
    (home,) = (tmp_path / "results").iterdir()
    statuses = {}
    for record in store.read(home, Record):
        statuses.setdefault(record.label, []).append(record.status)
    cuda = {"cuda": ["ok" if DEVICE == "cuda" else "skipped"] * 3}
    interpreted = [
        "ok",
        "ok",
        "ok" if DEVICE == "cuda" else "skipped",
    ]  # Triton's interpreter computes bfloat16 wrongly
    assert statuses == {"torch_eager": ["ok"] * 3, "triton": interpreted, "jax_triton": interpreted} | cuda


def test_a_cuda_kernel_of_version_1_compiles_and_calls_todays_launcher(monkeypatch):
    pytest.importorskip("cuda.core")
    from fusebench.backends import cuda

    kernel = discovery.find_kernels(discovery.roots_of([VERSION1]))["halved"]
    seen, signature = [], inspect.signature(cuda.Launch)

    def launch(*arguments):
        seen.append(signature.bind(*arguments).arguments)
        return lambda *values: seen.append(values)

    monkeypatch.setattr(cuda, "Launch", launch)
    module, device = importlib.import_module("implementations.halved.cuda"), Device("cuda", "sm_90", (9, 0), 132)
    for dtype in DTYPES:
        case, x = make_case(kernel, "odd", dtype), torch.ones(3, 37, dtype=getattr(torch, dtype))
        (program,) = module.programs(case, "default", device)
        assert program.name in cuda.compile_cubin(program.file, "sm_90a", [program.name]).symbols
        y = module.build(case, "default", device)(x)
        described, values = seen[-2:]
        assert (described["program"], described["grid"], described["block"]) == (program, 1, 128)
        assert values[0] is x and values[1] is y and values[2] == 111


def test_version_1_is_compared_with_the_working_tree(tmp_path, answered):
    mine = tmp_path / "mine"
    shutil.copytree(VERSION1, mine)
    git = ["git", "-C", str(mine), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "version 1"]):
        subprocess.run([*git, *words], check=True)
    (mine / "halved" / "torch_eager.py").write_text(VERSION2)
    done = answered(
        "compare", "@HEAD", "@.", "kernel=halved", "implementation=torch_eager", f"path={mine}", "batch=1000", "pairs=1", "rounds=3",
        "time_s=0.02",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (home,) = (tmp_path / "results").iterdir()
    (outcome,) = store.read(home, verdicts.Outcome, verdicts.FILE)
    assert outcome.status == "ok"


def test_all_kernels_of_an_old_commit_are_still_read(tmp_path):
    checkout = revision.repository(())
    try:
        commit = revision.resolve(checkout, OLD)
    except UsageError:
        pytest.skip(f"this clone has no history back to {OLD}")
    kernels = discovery.find_kernels(revision.export(checkout, commit, [discovery.HOME], tmp_path))
    assert set(kernels) >= {"launch", "lola", "softmax", "shcsa"} and kernels["lola"].mathematics.rows
    broken = [f"{i.file.name}: {i.broken}" for k in kernels.values() for i in k.implementations.values() if i.broken]
    assert not broken
    device, case = Device("cuda", "sm_90", (9, 0), 132), make_case(kernels["lola"], "large", "bfloat16")
    pytest.importorskip("cuda.core")
    module = importlib.import_module("implementations.lola.cuda")
    (first, last) = module.programs(case, "two_launches", device)
    assert "row_statistics" in first.name and "warpgroup" in last.name
