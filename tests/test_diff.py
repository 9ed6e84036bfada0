"""The command diff: how far two outputs are apart, in arrays written by hand and through the command line."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.comparison import difference, outputs, sides
from fusebench.contract import Cell
from fusebench.errors import UsageError
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan

FAULTS = Path(__file__).parent / "fixtures" / "faults"


def test_the_largest_differences_and_where_they_are():
    a = np.array([[1.0, 100.0], [0.5, 0.0]])
    b = np.array([[1.0, 101.0], [0.25, 0.0]], np.float16)
    found = difference.difference(a, b)
    assert (found.absolute, found.at) == (1.0, difference.Place((0, 1), 100.0, 101.0))
    assert (found.relative, found.relative_at) == (0.5, difference.Place((1, 0), 0.5, 0.25))
    assert (found.differing, found.elements) == (2, 4)


def test_the_same_is_at_no_place():
    a = np.array([1.0, math.nan, math.inf, -math.inf, 0.0])
    found = difference.difference(a, a.copy())
    assert found == difference.Difference(0.0, 0.0, None, None, 0, 5)
    assert difference.difference(np.array([0.0]), np.array([-0.0])).differing == 0


@pytest.mark.parametrize(("x", "y"), [(math.nan, 1.0), (math.inf, 1.0), (math.inf, -math.inf), (math.nan, math.inf)])
def test_what_is_not_finite_is_as_far_as_can_be(x, y):
    found = difference.difference(np.array([0.0, x]), np.array([5.0, y]))
    assert found.absolute == found.relative == math.inf and found.at.index == (1,)


def test_the_place_is_that_of_the_whole_array(monkeypatch):
    monkeypatch.setattr(difference, "CHUNK", 4)
    a = np.zeros((3, 5), np.float32)
    b = a.copy()
    b[2, 1] = 2.0
    found = difference.difference(a, b)
    assert found.at.index == found.relative_at.index == (2, 1) and found.differing == 1 and found.elements == 15


def test_other_shapes_and_empty_arrays():
    assert difference.difference(np.zeros((0, 3)), np.zeros((0, 3))).elements == 0
    with pytest.raises(ValueError, match="outputs of one shape"):
        difference.difference(np.zeros(3), np.zeros(4))


def cells(*labels, dtype="float32"):
    kernels = discovery.find_kernels(discovery.roots_of())
    case = make_case(kernels["softmax"], "odd", dtype)
    return [Cell(case, *label.split(":")) for label in labels]


def test_one_cell_goes_with_each_of_the_other_side():
    a, b = cells("triton:row", "triton:online"), cells("torch_eager:default")
    assert sides.pairs(a, b) == [(a[0], b[0]), (a[1], b[0])]
    assert sides.pairs(b, a) == [(b[0], a[0]), (b[0], a[1])]
    c = cells("cuda:row", "cuda:online", dtype="float16")
    assert sides.pairs(a, c) == [(a[0], c[0]), (a[1], c[1])]
    with pytest.raises(UsageError, match="name one variant"):
        sides.pairs(a, cells("cuda:row", "triton:row"))


def test_the_overrides_of_a_side_join_the_configuration():
    chosen = {"dtype": "float32", "config": {"num_warps": None, "BLOCK": 3}}
    done = sides.with_lines(chosen, ["dtype=float16", "config.num_warps=8"])
    assert (
        done == {"dtype": "float16", "config": {"num_warps": 8, "BLOCK": 3}} and chosen["config"]["num_warps"] is None
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a=torch_eager",), "b= is missing: expected two sides"),
        (("a=torch_eager", "b=tritn"), "side B (tritn): unknown implementation 'tritn': did you mean triton?"),
        (("a=torch_eager", "b='triton regime=queued'"), "regime cannot differ between the sides"),
        (("a=torch_eager", "b=config.nix=3"), "nix"),
        (("a=torch_eager", "b=triton@no-such-revision~1"), "unknown revision 'no-such-revision~1'"),
        (("a=torch_eager", "b=triton regime=queued"), "regime cannot differ between the sides"),
        (("a=torch_eager", "b=triton", "out=rows.txt"), "expected a file that ends in .csv, .json, .parquet"),
        (
            ("a=torch_eager", "b=triton", "out=none/rows.csv"),
            "expected a file that can be written, in a folder that is there",
        ),
        (("a=triton", "b=[cuda,nix]"), "side B (implementation=[cuda,nix]): unknown implementation 'nix'"),
    ],
)
def test_bad_input_is_one_line(answered, words, said):
    done = answered("diff", "kernel=softmax", *words)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_a_dry_run_names_the_pairs(answered):
    done = answered("diff", "kernel=softmax", "a=triton:row", "b=[torch_eager,flax]", "dry_run=true", "device=cpu")
    assert done.returncode == 0 and "triton:row | softmax odd/float32 torch_eager" in done.stdout
    assert "triton:row | softmax odd/float32 flax" in done.stdout
    several = ("a=torch_eager", "b=triton:row config.num_warps=[1,2]")
    done = answered("diff", "kernel=softmax", *several, "dry_run=true", "device=cpu")
    assert done.returncode == 0 and "triton:row num_warps=2" in done.stdout


@pytest.fixture
def runner(kernels, roots, pool, tmp_path):
    run = Run(kernels, roots, tmp_path, Settings("cpu" if pool.device == "cpu" else "cuda", Plan(0)))
    with outputs.runner(run, pool) as found:
        yield found


def test_outputs_stand_beside_their_own_errors(runner, kernels):
    (cell,) = cells("torch_eager:default")
    found = runner.outputs(cell)
    assert found.record.status == "ok" and [a.shape for a in found.arrays] == [
        (cell.case.sizes["R"], cell.case.sizes["C"])
    ]
    (own,) = found.own
    assert 0 < own.ratio <= 1 and own.error == found.record.parity.first.max_abs and own.checked == found.arrays[0].size
    again = runner.outputs(cell)
    assert difference.difference(found.arrays[0], again.arrays[0]).differing == 0
    half = runner.outputs(cells("torch_eager:default", dtype="float16")[0])
    apart = difference.difference(found.arrays[0], half.arrays[0])
    assert half.arrays[0].dtype == np.float16 and 0 < apart.absolute < 1e-2


def test_two_dtypes(tmp_path):
    words = ("kernel=add_relu", "worker=inline", "device=cpu")
    done = command(tmp_path, "a=torch_eager:default", "b='torch_eager:default dtype=float16'", "out=rows.csv", *words)
    assert done.returncode == 0, done.stderr
    assert "odd/float32 | odd/float16" in done.stdout and "outputs compared" in done.stdout
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert rows[0]["a_dtype"] == "float32" and rows[0]["b_dtype"] == "float16"
    assert 0 < float(rows[0]["max_abs"]) < 0.1 and 0 < float(rows[0]["b_error_budget"]) <= 1
    (folder,) = (tmp_path / "results").iterdir()
    (line, *_) = (folder / "differences.jsonl").read_text().splitlines()
    assert json.loads(line)["difference"]["absolute"] == float(rows[0]["max_abs"])
    assert (folder / "records.jsonl").is_file()


def test_a_side_that_is_wrong_sets_the_exit_code_and_is_compared_all_the_same(tmp_path):
    words = ("kernel=fault", "worker=inline", "device=cpu", f"path={FAULTS}")
    done = command(tmp_path, "a=a_fine", "b=wrong", *words)
    assert done.returncode == 1 and "wrong: wrong: error is" in done.stdout, done.stderr
    assert "1 outputs compared, 0 of them the same, 1 with a side that is not right" in done.stdout


def command(folder, *words):
    environment = {**os.environ, "COLUMNS": "300", "CUDA_VISIBLE_DEVICES": ""}
    call = [sys.executable, "-m", "fusebench", "diff", *words]
    return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
