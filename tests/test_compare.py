"""Comparisons: the statistics hold what they promise, sides mean what they say, and a bad side never gets a ratio."""

from __future__ import annotations

import json
import math
import shutil
import subprocess

import numpy as np
import pytest
from conftest import FIXTURES
from scipy import stats
from test_command_line import fusebench, records_of

from fusebench import discovery, records
from fusebench.cases import make_case
from fusebench.comparison import sides
from fusebench.comparison import statistics as comparison
from fusebench.comparison.pairs import Match
from fusebench.contract import Cell
from fusebench.errors import UsageError

QUICK = ("rounds=2", "time_s=0.01", "device=cpu")
NOISES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "heavy tails": lambda rng, n: rng.standard_t(3, n),
    "now and then disturbed": lambda rng, n: rng.normal(size=n) * np.where(rng.random(n) < 0.1, 10, 1),
    "a clock with steps": lambda rng, n: rng.choice((-1, 0, 1), n, p=(0.1, 0.8, 0.1)),
    "two modes": lambda rng, n: rng.choice((-1, 1), n) + 0.1 * rng.normal(size=n),
}


def drawn(noise, spread, count, seed):
    """`count` comparisons of ten pairs: ratios of a side against itself."""
    rng = np.random.default_rng(seed)
    return [np.exp(spread * NOISES[noise](rng, comparison.PAIRS)) for _ in range(count)]


@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_covers_what_it_promises(noise):
    missed = sum(not (r := comparison.compare(x)).low <= 1 <= r.high for x in drawn(noise, 0.02, 500, 1))
    assert missed <= 500 * 0.0125, "99 % intervals"


def test_percentile_intervals_would_be_too_narrow():
    def missed(x):
        found = stats.bootstrap(
            (np.log(x),), np.mean, n_resamples=500, method="percentile", confidence_level=0.99, rng=1
        )
        return not found.confidence_interval.low <= 0 <= found.confidence_interval.high

    assert sum(map(missed, drawn("normal", 0.02, 300, 1))) > 300 * 0.02


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("spread", [0.003, 0.1])
def test_equal_sides_are_hardly_ever_told_apart(noise, spread):
    wrong = sum(comparison.compare(x).verdict in ("faster", "slower") for x in drawn(noise, spread, 300, 2))
    assert wrong <= 300 * 0.02
    if spread < 0.01:
        assert wrong == 0, "what is significant but small is no verdict"


def test_five_percent_are_found_where_pairs_differ_by_two():
    found = [comparison.compare(1.05 * x).verdict for x in drawn("normal", 0.02, 300, 3)]
    assert found.count("slower") >= 0.95 * len(found) and "faster" not in found
    found = [comparison.compare(x / 1.05).verdict for x in drawn("normal", 0.02, 300, 3)]
    assert found.count("faster") >= 0.95 * len(found)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict"),
    [
        (1.0, 0.985, 1.015, "same"),
        (1.012, 1.005, 1.019, "same"),
        (1.018, 1.005, 1.031, "too noisy"),
        (1.05, 1.01, 1.09, "slower"),
        (1.05, 0.99, 1.11, "too noisy"),
        (0.95, 0.91, 0.99, "faster"),
        (0.95, 0.0, math.inf, "too noisy"),
    ],
)
def test_a_verdict_needs_the_whole_interval(ratio, low, high, verdict):
    assert comparison.verdict(ratio, low, high) == verdict


def test_few_pairs_have_no_interval():
    result = comparison.compare([1.5, 1.5, 1.5, 1.5])
    assert (result.low, result.high, result.verdict) == (0.0, math.inf, "too noisy")
    assert comparison.compare([1.5] * 5).verdict == "slower" and comparison.compare([1.0] * 5).verdict == "same"


def test_equal_ratios_of_a_clock_with_steps_have_an_interval():
    """CUPTI counts in 32 ns: of 2 µs that is 1.6 %."""
    assert comparison.compare([1.0] * 9 + [1.016]).verdict == "same"
    assert comparison.compare([1.048] * 9 + [1.032]).verdict == "slower"


def test_a_ratio_that_is_none_is_refused():
    with pytest.raises(ValueError, match="positive"):
        comparison.compare([1.0, 0.0])


def test_a_disturbed_round_and_a_drift_do_not_count():
    a = [1.0, 1.1, 1.2, 1.3, 9.0, 1.5, 1.6, 1.7]  # the machine gets slower, and one turn was disturbed
    b = [1.03 * t for t in [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]]
    assert comparison.pair_ratio(a, b) == pytest.approx(1.03)


def test_the_limit_is_broken_only_for_sure():
    slower = comparison.compare([1.071, 1.082, 1.086, 1.078, 1.074, 1.08])
    assert slower.surely_slower(0.03) and not slower.perhaps_slower(0.03) and not slower.surely_slower(0.08)
    assert slower.perhaps_slower(0.08)
    noisy = comparison.compare([0.9, 1.18, 1.0, 1.3, 1.1, 1.2])
    assert noisy.perhaps_slower(0.03) and not noisy.surely_slower(0.03)
    equal = comparison.compare([1.0, 1.001, 0.999, 0.9995, 1.002])
    assert not equal.perhaps_slower(0.03) and not equal.surely_slower(0.03)


def test_the_self_check_counts_false_verdicts_and_what_was_found():
    quiet = comparison.self_check(np.exp(np.random.default_rng(4).normal(0, 0.01, 30)), 10, 300)
    assert (quiet.false, quiet.found) == (0, 300)
    assert quiet.false_at_most == pytest.approx(1 - 0.05 ** (1 / 300)) and quiet.found_at_least == pytest.approx(
        0.05 ** (1 / 300)
    )
    # the sides are swapped at random: what favours one of them in all recorded pairs is no false verdict
    assert comparison.self_check([1.1] * 30, 10, 300).false <= 6
    assert comparison.self_check(np.exp(np.random.default_rng(4).normal(0, 0.2, 30)), 10, 300).found < 300


@pytest.fixture(scope="module")
def lola():
    return discovery.find_kernels(discovery.roots_of())["lola"]


def cells(kernel, *labels, dtypes=("float32",)):
    return [Cell(make_case(kernel, "batch", dtype), *label.split(":")) for dtype in dtypes for label in labels]


def test_cells_are_matched_by_case_and_label(lola):
    a = cells(lola, "triton:row", "triton:multirow", dtypes=("float32", "float16"))
    b = cells(lola, "triton:multirow", "triton:row", dtypes=("float16", "float32"))
    assert all(x.id == y.id for x, y in (m.cells for m in sides.match(a, b))) and len(sides.match(a, b)) == 4


def test_one_cell_matches_any_other_and_variants_match_by_name(lola):
    (match,) = sides.match(cells(lola, "triton:row"), cells(lola, "cuda:multirow", dtypes=("float16",)))
    assert [c.label for c in match.cells] == ["triton:row", "cuda:multirow"]
    found = sides.match(cells(lola, "triton:row", "triton:multirow"), cells(lola, "cuda:multirow", "cuda:row"))
    assert [[c.variant for c in m.cells] for m in found] == [["row", "row"], ["multirow", "multirow"]]


def test_what_has_no_partner_is_named(lola):
    with pytest.raises(UsageError, match="side A has triton:row, triton:multirow and side B cuda:row"):
        sides.match(cells(lola, "triton:row", "triton:multirow"), cells(lola, "cuda:row"))
    with pytest.raises(UsageError, match="side A has 2 cases"):
        sides.match(cells(lola, "cuda:row", dtypes=("float32", "float16")), cells(lola, "cuda:row"))


@pytest.mark.parametrize(
    ("text", "lines", "revision"),
    [
        ("triton:row@HEAD~1", ("implementation=triton:row",), "HEAD~1"),
        ("@main", (), "main"),
        (".", (), None),
        ("triton@.", ("implementation=triton",), None),
        ("flax dtype=float16 shape.K=3 @v1.0", ("implementation=flax", "dtype=float16", "shape.K=3"), "v1.0"),
        ("dtype=float16", ("dtype=float16",), None),
    ],
)
def test_a_side_is_an_implementation_a_revision_and_overrides(text, lines, revision):
    found = sides.request("A", text)
    assert (found.lines, found.revision) == (lines, revision)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "two sides"),
        (["triton"], "two sides"),
        (["kernel=lola", "implementation=flax"], "two sides"),
        (["tritn", "cuda"], "side A (tritn): unknown implementation 'tritn': did you mean triton"),
        (["flax", "triton", "kernel=lola"], "name one variant on each side"),
        (["flax", "torch_eager:nosuch"], "side B (torch_eager:nosuch)"),
        (["flax@nosuch", "flax"], "unknown revision 'nosuch'"),
        (["flax@", "flax"], "no revision behind @"),
        (["flax 'dtype", "flax"], "side A"),
        (["flax device=cpu", "flax"], "device cannot differ between the sides"),
        (["flax time_s=1", "flax time_s=2"], "time_s cannot differ"),
        (["flax", "flax regime=sustained"], "regime cannot differ"),
        (["flax cache=warm", "flax"], "cache cannot differ"),
        (["flax shape.Q=3", "flax", "kernel=lola"], "dimension"),
        (
            ["dtype=[float16,bfloat16]", "dtype=float32", "kernel=softmax"],
            "of softmax, side B 1 case (published/float32)",
        ),
        (["flax", "torch_eager", "pairs=0"], "pairs is 0"),
        (["flax", "torch_eager", "rounds=many"], "rounds is 'many'"),
        (["flax", "torch_eager", "confidence=1"], "confidence is 1"),
        (["flax", "torch_eager", "pair=3"], "did you mean pairs"),
        (["flax", "torch_eager", "time_s=0"], "above 0"),
        (["flax", "torch_eager", "worker=inline"], "processes"),
        (["flax", "torch_eager", "--fail-slower", "much"], "fail_slower is 'much'"),
        (["flax", "torch_eager", "--fail-slower=300%"], "fail_slower is '300%'"),
        (["flax", "torch_eager", "--fail-slower"], "fail_slower is ''"),
        (["flax", "torch_eager", "kernel=launch", "pairs=30", "resamples=10"], "a side against itself"),
        (["resume=nosuch"], "no compare run there"),
        (["resume=latest", "kernel=lola"], "leave out kernel=lola"),
        (["flax", "triton dtype=float16", "resume=latest"], "leave out flax 'triton dtype=float16'; only pairs"),
        (["flax", "triton", "kernel=lola", "--resume"], "leave out flax triton kernel=lola"),
    ],
)
def test_a_wrong_comparison_is_answered_by_one_line(tmp_path, monkeypatch, capfd, arguments, named):
    from fusebench.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    captured = capfd.readouterr()
    assert len(captured.err.splitlines()) == 1 and named in captured.err, captured.err
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_ten_times_the_work_is_slower_and_breaks_the_limit(tmp_path):
    done = fusebench(
        "compare", "slowed:base", "slowed:tenfold", "kernel=double", f"path=[{FIXTURES / 'kernels'},{FIXTURES / 'planted'}]", "batch=1000", "pairs=5",
        "--fail-slower", "3%", "rounds=9", "time_s=0.02", "device=cpu", cwd=tmp_path,
    )  # fmt: skip
    (found,) = results_of(tmp_path)
    assert (found["verdict"], found["fails"], done.returncode) == ("slower", True, 1), done.stdout + done.stderr
    assert found["pairs"] == 5 and found["ratio"] > 3 and found["low"] > 1.03
    assert "slower" in done.stdout and "3.0% was allowed" in done.stdout
    lines = records_of(tmp_path)
    assert [(r["pair"], r["side"]) for r in lines] == [(n, side) for n in range(5) for side in "AB"]
    assert all(r["status"] == "ok" and len(r["turns"]) == 9 and not r["parity"]["problem"] for r in lines)
    assert ["parity_again" in r and "parity_timed" in r for r in lines] == [True] * 2 + [False] * 8

    again = fusebench("compare", "resume=latest", "fail_slower=null", cwd=tmp_path)
    assert again.returncode == 0 and results_of(tmp_path)[0]["ratios"] == found["ratios"], again.stdout + again.stderr


def results_of(folder):
    """The comparisons of the only run in folder/results."""
    (file,) = folder.glob("results/*/comparison.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """A comparison of good and bad implementations, each with itself, in two pairs: what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("faults")
    mine = folder / "mine" / "fault"
    mine.mkdir(parents=True)
    for name in ("kernel", "a_fine", "exits", "refuses", "wrong"):
        shutil.copy(FIXTURES / "faults" / "fault" / f"{name}.py", mine)
    text = "    import os, pathlib\n    flag = pathlib.Path(__file__).with_name('flag')\n"
    text += "    if flag.exists():\n        flag.unlink()\n        os._exit(7)\n    return"
    (mine / "crashes_once.py").write_text((mine / "a_fine.py").read_text().replace("    return", text))
    (mine / "flag").touch()
    done = fusebench("compare", ".", "@.", "kernel=fault", f"path={mine.parent}", "pairs=2", *QUICK, cwd=folder)
    return done, folder


def test_a_side_that_is_wrong_or_crashes_never_gets_a_ratio(faults):
    done, folder = faults
    found = {r["labels"][0]: r for r in results_of(folder)}
    statuses = {"a_fine": "ok", "crashes_once": "ok", "exits": "crashed", "refuses": "skipped", "wrong": "wrong"}
    assert {label: r["status"] for label, r in found.items()} == statuses, done.stdout + done.stderr
    assert all(("ratio" in r) == (r["status"] == "ok") for r in found.values()) and done.returncode == 1
    assert "output 0[99]" in found["wrong"]["reason"] and "again: fusebench parity kernel=fault" in done.stdout
    assert "skipped  fault small/float32 refuses: side A: only on Sundays" in done.stdout


def test_a_crash_costs_its_pair_alone(faults):
    done, folder = faults
    found = {r["labels"][0]: r for r in results_of(folder)}
    assert [(found[n]["pairs"], found[n]["lost"]) for n in ("a_fine", "crashes_once", "exits")] == [
        (2, 0),
        (1, 1),
        (0, 2),
    ]
    assert (
        "1 of 2 pairs lost: the worker ended: exit code 7" in done.stdout and "an interval needs 5 pairs" in done.stdout
    )


def test_a_revision_brings_its_own_kernels(tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(FIXTURES / "kernels" / "double", mine / "double")
    file = mine / "double" / "torch_eager.py"
    git = ["git", "-C", str(mine), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    old = file.read_text()
    file.write_text(old + "# changed since\n")
    done = fusebench(
        "compare", "@HEAD", "@.", "kernel=double", "implementation=torch_eager:plus", f"path={mine}", "pairs=1", *QUICK, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    a, b = records_of(tmp_path)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert (a["status"], b["status"]) == ("ok", "ok") and a["source"]["sha256"] != b["source"]["sha256"]
    assert a["source"]["git_commit"] == head and b["source"]["git_commit"] == head + "+"
    assert file.read_text() == old + "# changed since\n", "the working tree is left alone"

    again = fusebench("compare", "resume=latest", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    (mine / "_shared.py").write_text("")
    again = fusebench("compare", "resume=latest", cwd=tmp_path)
    assert again.returncode == 2 and "has changed since" in again.stderr, "kernels may lie in the files that are shared"
    (mine / "_shared.py").unlink()

    kernel = mine / "double" / "kernel.py"
    kernel.write_text(kernel.read_text().replace("rng.standard_normal(", "0 * rng.standard_normal("))
    shutil.rmtree(tmp_path / "results")
    fusebench("compare", "torch_eager:plus@HEAD", ".", "implementation=torch_eager:plus", "kernel=double", f"path={mine}", *QUICK, cwd=tmp_path)  # fmt: skip
    (found,) = results_of(tmp_path)
    assert found["status"] == "skipped" and "different inputs" in found["reason"]


def test_a_record_knows_the_shared_files_but_not_those_of_siblings(tmp_path):
    folder = tmp_path / "lola"
    folder.mkdir()
    mine, found = folder / "triton.py", []
    mine.write_text("")
    for changed in ("lola/flax.py", "lola/_triton_kernels.py", "lola/cuda.cu", "_device.cuh", "lola/kernel.py"):
        (tmp_path / changed).write_text("changed")
        found.append(records.source_of(mine)["shared_sha256"])
    assert len(set(found)) == 5
    (folder / "flax.py").write_text("again")
    assert records.source_of(mine)["shared_sha256"] == found[-1]


def test_a_limit_is_not_kept_by_comparing_nothing(tmp_path):
    sides = ("compare", "triton", "triton", "kernel=launch", "dtype=bfloat16", "device=cpu")
    assert fusebench(*sides, cwd=tmp_path).returncode == 0
    done = fusebench(*sides, "--fail-slower", "3%", cwd=tmp_path)
    assert done.returncode == 1 and "nothing was compared" in done.stderr


def test_sides_may_have_inputs_of_their_own_and_rows_say_which(tmp_path):
    done = fusebench(
        "compare", "torch_eager:default", "torch_eager:default inputs=subnormal seed=2", "kernel=add_relu", "case=tiny", "pairs=1", *QUICK, cwd=tmp_path
    )  # fmt: skip
    (found,) = results_of(tmp_path)
    assert found["status"] == "ok" and found["cases"] == ["tiny/float32", "tiny/float32 subnormal inputs seed=2"]
    assert done.returncode == 0 and "tiny/float32 | tiny/float32 subnormal inputs seed=2" in done.stdout


def test_pairs_that_are_lost_more_often_than_not_end_the_comparison():
    def pair(status):
        bad = None if status == "ok" else "A"
        ended = {"ended_by": bad, "lost": status in ("crashed", "timeout")}
        return {"status": status, "side": "A"} | ended, {"status": "ok", "side": "B"} | ended

    match = Match(((), ()))
    for number, (status, ends) in enumerate(
        [("crashed", False), ("ok", False), ("ok", False), ("timeout", False), ("crashed", True)]
    ):
        match.pairs[number] = pair(status)
        assert bool(match.end) == ends, number
    assert Match(((), ()), {0: pair("ok"), 1: pair("wrong")}).end["status"] == "wrong"
