"""One bad cell costs one record: crashes, hangs, exceptions, wrong answers and, on a GPU, a bad access, with good cells around them."""

from __future__ import annotations

import pytest
from conftest import DEVICE

from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.run import Run, Settings, run


@pytest.fixture(scope="module")
def results(kernels, roots, pool, tmp_path_factory):
    """The records of all implementations of the fault kernel, by name, in one run."""
    kernel = kernels["fault"]
    cells = [
        Cell(make_case(kernel, "small"), name, "default") for name in kernel.implementations if name != "recompiles"
    ]
    folder = tmp_path_factory.mktemp("faults")
    return {r["implementation"]: r for r in run(Run(kernels, roots, folder, Settings(DEVICE, 0.02, 8.0)), cells, pool)}


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("a_fine", "ok", None),
        ("exits", "crashed", "exit code 7"),
        ("segfaults", "crashed", "SIGSEGV"),
        ("hangs", "timeout", "8 s"),
        ("raises", "failed", "ValueError: no such tile"),
        ("wrong", "wrong", "[99]"),
        ("misshapen", "wrong", "shape (99,), expected (100,)"),
        ("stale", "wrong", "a timed call"),
        ("mutates", "wrong", "changed its input 0"),
        ("misdeclared", "wrong", "names the point 'outptu'; the formula has output"),
        ("leaves", "failed", "SystemExit"),
        ("refuses", "skipped", "only on Sundays"),
        ("bad_access", "skipped", "needs an NVIDIA GPU"),
        ("unreadable", "failed", "unreadable.py cannot be read"),
        ("prints", "ok", None),
        ("z_fine", "ok", None),
    ],
)
def test_each_cell_gets_its_own_status(results, name, status, reason):
    if name == "bad_access" and DEVICE == "cuda":
        status, reason = "crashed", "illegal"
    assert results[name]["status"] == status
    assert (results[name]["reason"] is None) if reason is None else (reason in results[name]["reason"])


def test_only_ok_cells_have_a_time(results):
    assert all(("timing" in r) == (r["status"] == "ok") for r in results.values())


def test_a_failed_cell_keeps_its_traceback(results):
    assert "no such tile" in results["raises"]["traceback"]


def test_a_second_compilation_fails(kernels, run_cells):
    (record,) = run_cells([Cell(make_case(kernels["fault"], "small"), "recompiles", "default")], time_s=0.02)
    assert record["status"] == "failed" and "Recompile" in record["reason"]
