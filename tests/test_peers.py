"""Implementations by libraries that are not installed here: what they say of that, and that they call a stand-in rightly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fusebench.commands.app import run_app
from fusebench.records import store
from fusebench.records.record import Record

FIXTURES = Path(__file__).parent / "fixtures"
SIZES = ("shape.M=37", "shape.F=5", "shape.V=211", "shape.D=8")


@pytest.fixture
def parity(tmp_path, capsys):
    """The records of `fusebench parity kernel=embedding implementation=fbgemm`."""

    def run(*arguments):
        run_app("parity", ["kernel=embedding", "implementation=fbgemm", f"out_dir={tmp_path / 'run'}", *arguments])
        return store.read(tmp_path / "run", Record)

    return run


@pytest.fixture
def interpreter(tmp_path):
    """One that has the stand-in of FBGEMM, as fbgemm-gpu's wheel has its own Torch."""
    file = tmp_path / "python"
    file.write_text(f'#!/bin/sh\nPYTHONPATH="{FIXTURES / "fbgemm"}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    file.chmod(0o755)
    return file


def test_fbgemm_looks_up_and_sums_gradients_in_an_interpreter_of_its_own(parity, interpreter):
    asked = ("mode=[forward,backward]", "option.hashing=[modulus,lookup]", "dtype=[float32,bfloat16]")
    records = parity(*SIZES, *asked, "inputs=plain", f"worker.python.fbgemm={interpreter}")
    assert [(r.status, r.reason) for r in records if r.status != "skipped"] == [("ok", None)] * 8
    assert {r.reason for r in records if r.status == "skipped"} == {
        "improved is for option.hashing=lookup",
        "modulus is for option.hashing=modulus",
    }


def test_fbgemm_reads_whole_vectors(parity, interpreter):
    records = parity("case=odd", f"worker.python.fbgemm={interpreter}")
    assert any("vectors of four elements" in r.reason for r in records)


def test_without_fbgemm_it_says_what_to_install(parity):
    assert {(r.status, "fbgemm-gpu" in r.reason) for r in parity(*SIZES)} == {("skipped", True)}
