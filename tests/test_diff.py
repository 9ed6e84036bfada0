"""The command diff: how far two outputs are apart, in arrays written by hand and through the command line."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from samples import Pool, table_of, untimed

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.commands import diff
from fusebench.comparison import difference, differences, outputs, sides
from fusebench.comparison.outputs import Outputs, Own
from fusebench.contract import Cell
from fusebench.errors import UsageError
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers.protocol import BuildCell, Refused, Release

FAULTS = Path(__file__).parent / "fixtures" / "faults"


def test_the_largest_differences_and_where_they_are():
    a = np.array([[1.0, 100.0], [0.5, 0.0]])
    b = np.array([[1.0, 101.0], [0.25, 0.0]], np.float16)
    found = difference.difference(a, b)
    assert (found.absolute, found.at) == (1.0, difference.Place((0, 1), 100.0, 101.0))
    assert (found.relative, found.relative_at) == (0.5, difference.Place((1, 0), 0.5, 0.25))
    assert (found.differing, found.elements) == (2, 4)
    assert difference.difference(b, a).relative == 0.5, "of the larger one, whichever side has it"


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
        (
            ("a=''", "b=triton"),
            'side A is empty; expected IMPLEMENTATION[:VARIANT][@REVISION], overrides in quotes, or both, such as "triton',
        ),
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
    assert done.returncode == 0 and "would run:  triton:row | torch_eager, triton:row | flax" in done.stdout
    several = ("a=torch_eager", "b=triton:row config.num_warps=[1,2]")
    done = answered("diff", "kernel=softmax", *several, "dry_run=true", "device=cpu")
    assert done.returncode == 0 and "triton:row num_warps=2" in done.stdout


@pytest.fixture
def computed(monkeypatch, tmp_path):
    """What each cell computes, by its label, and the labels that were asked for: no worker is started."""
    known, asked = {}, []

    class Runner:
        def outputs(self, cell):
            asked.append(cell.label)
            if isinstance(found := known[cell.label], BaseException):
                raise found
            return found

    monkeypatch.setattr(diff.outputs, "runner", lambda *of: contextlib.nullcontext(Runner()))
    monkeypatch.setattr(diff, "_pool", lambda *of: contextlib.nullcontext())
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.chdir(tmp_path)
    return known, asked


A = np.array([[1.0, 100.0], [0.5, 0.0]], np.float32)
B = np.array([[1.0, 101.0], [0.25, 0.0]], np.float16)


def test_outputs_from_the_arrays_to_the_printed_cell(computed, tmp_path, capsys):
    known, asked = computed
    known["triton:row"] = Outputs(untimed("triton:row"), [A], [Own(0.125, 0.5, 4)], ["y"])
    known["torch_eager"] = Outputs(untimed(), [B, B], [Own(0.25, 0.75, 3)] * 2, ["y", "z"])
    known["flax"] = Outputs(untimed("flax"), [A.copy()], [Own(0.0, 0.0, 4)], ["y"])
    known["flax:float32"] = Outputs(untimed("flax:float32"), [A.reshape(-1)], [Own(0.0, 0.0, 4)], ["y"])
    known["torch_compile"] = Outputs(untimed("torch_compile", "failed", reason="it broke"))
    words = [
        "kernel=softmax",
        "a=triton:row",
        "b=[torch_eager,flax,torch_compile:default]",
        "device=cpu",
        "out=rows.csv",
    ]
    assert main(["diff", *words]) == 1, "a side has failed"
    assert asked == ["triton:row", *list(known)[1:]], "A's outputs are kept for the next pair"
    out = capsys.readouterr().out
    assert "\nsoftmax  odd/float32  [2, 2]\n" in out
    first, second = table_of(out, "A")
    assert first == {
        "A": "triton:row", "B": "torch_eager", "output": "y", "max |A-B|": "1", "at": "[0, 1]", "A there": "100", "B there": "101",
        "max relative": "0.5", "relative at": "[1, 0]", "differ": "2/4", "A error": "0.125", "A error/budget": "0.50",
        "B error": "0.25", "B error/budget": "0.75",
    }  # fmt: skip
    assert {heading: text for heading, text in second.items() if text} == {
        "A": "triton:row", "B": "flax", "output": "y", "max |A-B|": "0", "max relative": "0", "differ": "0/4", "A error": "0.125",
        "A error/budget": "0.50", "B error": "0", "B error/budget": "0.00",
    }  # fmt: skip
    assert "\ntriton:row | flax:float32: A is [2, 2], B [4]: no element of one is the other's\n" in out
    assert out.count("torch_compile: failed: it broke\n") == 1 and "no output of both" not in out
    assert "2 outputs compared, 1 of them the same, 1 with a side that is not right; " in out
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [row["b"] for row in rows] == [*list(known)[1:]]
    numbers = {"max_abs": 1.0, "abs_a": 100.0, "abs_b": 101.0, "max_rel": 0.5, "rel_a": 0.5, "rel_b": 0.25, "differing": 2, "elements": 4,
               "a_error": 0.125, "a_error_budget": 0.5, "a_checked": 4, "b_error": 0.25, "b_error_budget": 0.75, "b_checked": 3}  # fmt: skip
    assert {name: float(rows[0][name]) for name in numbers} == numbers
    texts = {"shape": "2×2", "abs_at": "0, 1", "rel_at": "1, 0", "a_dtype": "float32", "b_dtype": "float16", "reason": "",
             "a_case": "odd/float32", "a_status": "ok", "a_commit": ""}  # fmt: skip
    assert {name: rows[0][name] for name in texts} == texts
    assert (rows[1]["abs_at"], float(rows[1]["max_abs"]), rows[2]["max_abs"]) == ("", 0.0, "")
    assert (rows[3]["b_status"], rows[3]["b_reason"], rows[3]["reason"]) == (
        "failed",
        "it broke",
        "no output of both sides",
    )
    (folder,) = (tmp_path / "results").iterdir()
    kept = [json.loads(line) for line in (folder / "differences.jsonl").read_text().splitlines()]
    assert [row["b"]["label"] for row in kept] == [*list(known)[1:]] and kept[0]["difference"]["absolute"] == 1.0
    assert len((folder / "records.jsonl").read_text().splitlines()) == len(known)


def test_each_kind_of_inputs_has_its_table(computed, capsys):
    known, _ = computed
    known["triton:row"] = known["torch_eager"] = Outputs(untimed(), [A], [Own(0.125, 0.5, 4)], ["y"])
    words = ("a=triton:row", "b=torch_eager", "inputs=[plain,nan]", "device=cpu")
    assert main(["diff", "kernel=softmax", *words]) == 0
    out = capsys.readouterr().out
    assert "\nsoftmax  odd/float32  [2, 2]\n" in out and "\nsoftmax  odd/float32 nan inputs  [2, 2]\n" in out


def test_neighbours_of_float32_are_told_apart(computed, capsys):
    known, _ = computed
    for label, value in (("triton:row", A), ("torch_eager", np.nextafter(A, np.float32(2)))):
        known[label] = Outputs(untimed(label), [value], [Own(0.0, 0.0, 4)], ["y"])
    assert main(["diff", "kernel=softmax", "a=triton:row", "b=torch_eager", "device=cpu"]) == 0
    (row,) = table_of(capsys.readouterr().out, "A")
    assert row["A there"] == "100" and row["B there"] == "99.9999924"


def test_a_quiet_comparison_has_its_counts_alone(computed, capsys):
    known, _ = computed
    known["triton:row"] = known["torch_eager"] = Outputs(untimed(), [A], [Own(0.125, 0.5, 4)], ["y"])
    assert main(["diff", "kernel=softmax", "a=triton:row", "b=torch_eager", "device=cpu", "quiet=true"]) == 0
    assert capsys.readouterr().out.startswith("\n1 output compared, 1 of them the same, 0 with a side")


def test_an_interrupted_comparison_keeps_what_it_has(computed, tmp_path, capsys):
    known, _ = computed
    known["triton:row"] = known["torch_eager"] = Outputs(untimed(), [A], [Own(0.125, 0.5, 4)], ["y"])
    known["flax"] = KeyboardInterrupt()
    assert main(["diff", "kernel=softmax", "a=triton:row", "b=[torch_eager,flax:default]", "device=cpu"]) == 130
    assert "interrupted: 1 row written to " in capsys.readouterr().err
    (folder,) = (tmp_path / "results").iterdir()
    assert len((folder / "differences.jsonl").read_text().splitlines()) == 1


def test_a_side_of_a_commit_and_outputs_without_a_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    (cell,) = cells("triton:row")
    half = Cell(cells("triton:row", dtype="float16")[0].case, "torch_eager", "default")
    skipped = Outputs(untimed(status="skipped", reason="no"), [A, B], [Own(0.0, 0.0, 4)] * 2, ["y"])
    found = differences.rows([cell, half], [skipped, skipped], ["0123456789ab", None])
    assert [(row.output, row.difference.differing, row.fails) for row in found] == [
        ("y", 0, False),
        ("output 1", 0, False),
    ]
    differences.show(found)
    out = capsys.readouterr().out
    assert "softmax  odd/float32 | odd/float16  [2, 2]" in out and "\ntriton:row @0123456789: skipped: no\n" in out
    assert table_of(out, "A")[1]["A"] == "triton:row @0123456789"


def test_cells_of_a_case_compute_on_the_same_inputs_and_their_errors_are_kept(tmp_path):
    kernels = discovery.find_kernels([FAULTS])
    this, pool = Run(kernels, discovery.roots_of([FAULTS]), tmp_path / "run", Settings("cpu", Plan(0))), Pool()

    def cell(implementation, dtype="float32", seed=0):
        return Cell(make_case(kernels["fault"], "odd", dtype), implementation, "default", seed)

    asked = (("a_fine",), ("z_fine",), ("a_fine", "float16"), ("a_fine", "float16", 1))
    with outputs.runner(this, pool, "0123abc") as runner:
        one, two, half, seeded = (runner.outputs(cell(*of)) for of in asked)
    builds, others = pool.worker.asked[::2], pool.worker.asked[1::2]
    assert [type(m) for m in (*builds, *others)] == [BuildCell] * 4 + [Release] * 4
    assert builds[0].sets == builds[1].sets != builds[2].sets
    assert one.record.status == "ok" and one.record.source.git_commit == "0123abc"
    assert one.own == [Own(0.0, 0.0, 7)] and one.arrays[0].shape == (7,)
    assert one.arrays[0].tobytes() == two.arrays[0].tobytes() and half.arrays[0].dtype == np.float16
    assert half.arrays[0].tobytes() != seeded.arrays[0].tobytes(), "a seed of its own has inputs of its own"
    assert not list(this.folder.glob(".*")), "files of a comparison go with it"


def test_a_cell_that_does_not_run_has_no_outputs_and_the_next_one_has_its_own(tmp_path):
    kernels = discovery.find_kernels([FAULTS])
    this = Run(kernels, discovery.roots_of([FAULTS]), tmp_path / "run", Settings("cpu", Plan(0)))
    case = make_case(kernels["fault"], "odd")
    pool = Pool()
    with outputs.runner(this, pool) as runner:
        ran = runner.outputs(Cell(case, "a_fine", "default"))
        pool.worker.answers[BuildCell] = Refused("crashed", "it is gone")
        lost = runner.outputs(Cell(case, "z_fine", "default"))
    assert len(ran.arrays) == len(ran.own) == 1
    assert (lost.record.status, lost.record.reason, lost.arrays, lost.own) == ("crashed", "it is gone", [], [])


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
    assert "odd/float32 | odd/float16" in done.stdout and "1 output compared" in done.stdout
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
    assert "1 output compared, 0 of them the same, 1 with a side that is not right" in done.stdout


def command(folder, *words):
    environment = {**os.environ, "COLUMNS": "300", "CUDA_VISIBLE_DEVICES": ""}
    call = [sys.executable, "-m", "fusebench", "diff", *words]
    return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_nothing_compared_is_no_success(answered):
    """Every pair has a skipped side: Triton's interpreter has no bfloat16."""
    words = ("kernel=softmax", "worker=inline", "device=cpu", "dtype=bfloat16")
    done = answered("diff", *words, "a=triton:row", "b=cuda:row")
    assert done.returncode == 1 and "\n0 outputs compared, 0 of them the same, 0 with a side" in done.stdout
    assert done.stderr == "nothing compared: no pair has an output of both sides, of one shape\n"
