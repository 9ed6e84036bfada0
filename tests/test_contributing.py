"""CONTRIBUTING.md followed to the letter, in a copy of the repository: its code goes where it says, and its commands run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from test_command_line import REPOSITORY

from fusebench.records import store
from fusebench.records.record import Record

TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()
# each block of Python stands behind the path that it is for
BLOCKS = re.findall(r"`(implementations/\w+/\w+\.py)`(?:(?!```).)*?```python\n(.*?)```", TEXT, re.DOTALL)
(GRADIENT,) = re.findall(r"```py\n(.*?)```", TEXT, re.DOTALL)  # which goes behind linear's kernel.py
COMMANDS = re.findall(r'`(make \w+ ARGS="[^"`]+")`', TEXT)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="the commands are make's")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository with the packages of this Python, as `make install` leaves it."""
    folder = tmp_path_factory.mktemp("copy") / "repository"
    folder.mkdir()
    for name in ("fusebench", "implementations", "conf", "constraints"):
        shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder)
    (folder / ".venv" / "bin").mkdir(parents=True)
    program = folder / ".venv" / "bin" / "fusebench"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fusebench.cli "$@"\n')
    program.chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    for path, text in BLOCKS:
        (folder / path).parent.mkdir(exist_ok=True)
        assert not (folder / path).exists(), "an example is new"
        (folder / path).write_text(text)
    linear = folder / "implementations" / "linear" / "kernel.py"
    linear.write_text(f"{linear.read_text()}\n\n{GRADIENT}")
    return folder


def run(command, folder):
    """Runs a command of the page as a shell does; what it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "MAKEFLAGS")} | {
        "PYTHONPATH": str(folder)
    }
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_the_examples_that_it_says_are_complete():
    assert [path for path, _ in BLOCKS] == [
        "implementations/lola/torch_addmm.py", "implementations/linear/kernel.py", "implementations/linear/torch_eager.py"
    ]  # fmt: skip
    assert len(BLOCKS) == TEXT.count("```python") and len(COMMANDS) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(copy, command):
    shutil.rmtree(copy / "results", ignore_errors=True)
    run(command, copy)
    (folder,) = (copy / "results").iterdir()
    records = store.read(folder, Record)
    asked = dict(re.findall(r"(\w+)=(\w+)", command.partition("ARGS=")[2]))
    assert records and all(r.status == "ok" and r.kernel == asked["kernel"] for r in records)
    assert {r.case.dtype for r in records} == (
        {"float32", "float16", "bfloat16"} if asked.get("dtype") == "all" else {"float32"}
    )
    assert all(r.cell.implementation == asked.get("implementation", "torch_eager") for r in records)
    assert all((r.timing is None) == command.startswith("make parity") for r in records)


def test_what_was_added_is_listed(copy):
    listed = run("make list ARGS=--markdown", copy)
    assert "| linear |  | ✓ |" in listed and "torch_addmm" in listed
    assert "forward, backward, forward_backward" in run("make list ARGS=kernel=linear", copy)
