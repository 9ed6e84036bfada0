"""What crashes a compiler, has it hang, or is a broken file costs `inspect` that cell alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.inspection import compiled, isolated, targets

FIXTURES = Path(__file__).parent / "fixtures"
COMPILED = ("inspect", "kernel=double", f"path=[{FIXTURES}/kernels,{FIXTURES}/planted_configs]", "timeout_s=1")


def test_a_crash_and_a_hang_cost_their_cells_alone(answered):
    pytest.importorskip("cuda.core")
    ways = "config.compiler=[crashes,hangs,raises,right]"
    done = answered(*COMPILED, "implementation=[torch_compiled,cuda_planted]", ways, "config.how=right")
    assert done.returncode == 1, done.stdout + done.stderr
    said = "torch_compiled compiler="
    assert f"\n{said}crashes: the compiler ended: killed by SIGABRT\n" in done.stdout
    assert f"\n{said}hangs: no answer within 1 s (timeout_s sets the limit)\n" in done.stdout
    assert f"\n{said}raises: RuntimeError: ptxas has no answer to 2\n" in done.stdout
    assert "cuda_planted how=right" in done.stdout and "1 of 5 cells compiled, 3 failed" in done.stdout


def test_the_ptx_that_is_asked_for_needs_no_source_later(kernels, monkeypatch):
    """The sources of a revision are gone when its stages are compared."""
    pytest.importorskip("cuda.core")
    implementation, case = kernels["launch"].implementations["cuda"], make_case(kernels["launch"], "odd", "float32")
    target = targets.target("sm_90a")
    (made,) = compiled.compile_cell(Cell(case, "cuda", "default"), implementation, target, ptx=True)
    monkeypatch.setattr(compiled, "compile_ptx", lambda *_: pytest.fail("its source is read again"))
    assert ".entry" in made.stage("ptx")


def test_cells_share_a_process(answered, monkeypatch):
    pytest.importorskip("cuda.core")
    started = []

    class Counted(isolated.Pool):
        def start(self, backend, python):
            started.append(backend)
            super().start(backend, python)

    monkeypatch.setattr(isolated, "Pool", Counted)
    done = answered("inspect", "kernel=launch", "implementation=cuda", "dtype=all")
    assert done.returncode == 0 and "3 of 3 cells compiled" in done.stdout and started == ["compiler"]
