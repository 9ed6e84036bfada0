"""Comparisons: the statistics hold what they promise, sides mean what they say, and a bad side never gets a ratio."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest
from conftest import FIXTURES
from scipy import stats
from test_command_line import fusebench

from fusebench import cli, discovery
from fusebench.cases import make_case
from fusebench.comparison import sides, verdicts
from fusebench.comparison import statistics as comparison
from fusebench.contract import Cell
from fusebench.errors import UsageError
from fusebench.records import store
from fusebench.records.record import PairRecord

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
    missed = sum(not (r := comparison.compare(x)).low <= 1 <= r.high for x in drawn(noise, 0.02, 320, 1))
    assert missed <= 320 * 0.0125, "99 % intervals"


def test_percentile_intervals_would_be_too_narrow():
    def missed(x):
        found = stats.bootstrap(
            (np.log(x),), np.mean, n_resamples=300, method="percentile", confidence_level=0.99, rng=1
        )
        return not found.confidence_interval.low <= 0 <= found.confidence_interval.high

    assert sum(map(missed, drawn("normal", 0.02, 150, 1))) > 150 * 0.02


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("spread", [0.003, 0.1])
def test_equal_sides_are_hardly_ever_told_apart(noise, spread):
    wrong = sum(comparison.compare(x).verdict in ("faster", "slower") for x in drawn(noise, spread, 100, 2))
    assert wrong <= 100 * 0.02
    if spread < 0.01:
        assert wrong == 0, "what is significant but small is no verdict"


def test_five_percent_are_found_where_pairs_differ_by_two():
    found = [comparison.compare(1.05 * x).verdict for x in drawn("normal", 0.02, 100, 3)]
    assert found.count("slower") >= 0.95 * len(found) and "faster" not in found
    found = [comparison.compare(x / 1.05).verdict for x in drawn("normal", 0.02, 100, 3)]
    assert found.count("faster") >= 0.95 * len(found)


def test_equal_ratios_of_a_clock_with_steps_have_an_interval():
    """CUPTI counts in 32 ns: of 2 µs that is 1.6 %."""
    assert comparison.compare([1.0] * 9 + [1.016]).verdict == "same"
    assert comparison.compare([1.048] * 9 + [1.032]).verdict == "slower"


def test_a_disturbed_round_and_a_drift_do_not_count():
    a = [1.0, 1.1, 1.2, 1.3, 9.0, 1.5, 1.6, 1.7]  # the machine gets slower, and one turn was disturbed
    b = [1.03 * t for t in [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]]
    assert comparison.pair_ratio(a, b) == pytest.approx(1.03)


def test_the_self_check_counts_false_verdicts_and_what_was_found():
    quiet = comparison.self_check(np.exp(np.random.default_rng(4).normal(0, 0.01, 30)), 10, 60)
    assert (quiet.false, quiet.found) == (0, 60)
    # the sides are swapped at random: what favours one of them in all recorded pairs is no false verdict
    assert comparison.self_check([1.1] * 30, 10, 60).false <= 2
    assert comparison.self_check(np.exp(np.random.default_rng(4).normal(0, 0.2, 30)), 10, 60).found < 60


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
    with pytest.raises(
        UsageError, match="name one variant on each side"
    ):  # rows of two implementations are none's variants
        sides.match(cells(lola, "triton:row", "flax:multirow"), cells(lola, "cuda:row", "cuda:multirow"))
    ids = [cell.case.id for cell in cells(lola, "cuda:row", dtypes=("float32", "float16"))]
    named = re.escape(f"side A has 2 cases ({', '.join(ids)}) of lola, side B 1 case ({ids[0]}): expected as many")
    with pytest.raises(UsageError, match=named):
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
        ("flax@v=1", ("implementation=flax",), "v=1"),
    ],
)
def test_a_side_is_an_implementation_a_revision_and_overrides(text, lines, revision):
    found = sides.parse("A", text)
    assert (found.lines, found.revision) == (lines, revision)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("flax@", "no revision behind @; expected such as @HEAD~1, or @. for the working tree"),
        ("@", "no revision behind @"),
        ("flax 'dtype", "No closing quotation; expected IMPLEMENTATION"),
        (
            "flax device=cpu",
            "device cannot differ between the sides, which must be measured in the same way; a side may set implementation",
        ),
        ("time_s=1", "time_s cannot differ"),
        ("flax regime=sustained", "regime cannot differ"),
        ("flax cache=warm", "cache cannot differ"),
        ("flax timeout_s=3", "timeout_s cannot differ"),
        ("kernel=lola", "kernel cannot differ"),
        ("flax worker=inline", "worker cannot differ"),
        ("flax pairs=3", "seed, inputs, shape.NAME, option.NAME, config.NAME, worker.python.NAME"),
    ],
)
def test_what_is_no_side_is_named(text, named):
    with pytest.raises(UsageError) as caught:
        sides.parse("B", text)
    assert str(caught.value).startswith(f"side B ({text}): ") and named in str(caught.value)


def test_an_empty_side_is_none():
    with pytest.raises(UsageError, match=r"^side A is empty; expected IMPLEMENTATION"):
        sides.parse("A", " ")


def test_a_side_may_set_whatever_is_of_a_cell():
    text = "flax:a case=odd dtype=float16 precision=tf32 batch=3 shapes=x.csv seed=3 inputs=nan shape.K=3 option.x=y config.z=4 worker.python.flax=p"
    found = sides.parse("A", text)
    assert found.lines == ("implementation=flax:a", *text.split()[1:]) and (found.name, found.text) == ("A", text)
    assert sides.parse("A", "flax@one @two").revision == "two" and sides.parse("A", "@one flax@.").revision == "one"
    assert sides.parse("A", "case=a@b").lines == ("case=a@b",), "an @ behind a = is the value's own"


@pytest.fixture
def dry(capsys):
    """What a comparison of softmax would do: the exit code, and what was printed."""

    def show(*arguments):
        code = cli.main(["compare", *arguments, "kernel=softmax", "case=odd", "device=cpu", "dry_run=true"])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return show


@pytest.mark.parametrize("named", [("", ""), ("a=", "b="), ("B=", "A=")])
def test_the_sides_may_be_two_configs(dry, named):
    sides = [f"{name}implementation=triton config.num_warps={n}" for name, n in zip(named, (4, 8), strict=True)]
    code, said = dry(*sides)
    assert code == 0 and "3 comparisons: 0 would run" in said
    first, second = (8, 4) if "A=" in named else (4, 8)
    assert f"triton:row num_warps={first} | triton:row num_warps={second}" in said


def test_a_config_against_the_default_and_one_variant_against_another(dry):
    code, said = dry("triton", "triton config.num_warps=8")
    assert code == 0 and "triton:row | triton:row num_warps=8" in said
    code, said = dry("triton:row config.num_warps=4", "jax_triton:row config.num_warps=8")
    assert code == 0 and "triton:row num_warps=4 | jax_triton:row num_warps=8" in said
    code, said = dry("triton config.num_warps=[2,4]", "triton config.num_warps=8")
    assert code == 2 and "name one variant on each side" in said, "four configs have no partner"


@pytest.mark.parametrize(
    ("side", "said"),
    [
        ("triton config.num_wraps=4", "unknown tunable 'num_wraps': did you mean num_warps?"),
        ("triton config.num_warps=many", "config.num_warps is 'many': expected a value such as"),
        ("torch_eager config.num_warps=4", "unknown tunable 'num_warps' of the chosen implementations"),
    ],
)
def test_a_wrong_config_of_a_side_is_named(dry, side, said):
    code, told = dry(side, "triton")
    assert code == 2 and f"side A ({side}): " in told and said in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["flax", "triton", "kernel=lola"], ["flax", "triton"]),
        (["kernel=lola", "flax", "triton"], []),
        (["flax", "kernel=lola"], []),
        (["dtype=float16", "dtype=bfloat16", "kernel=lola"], ["dtype=float16", "dtype=bfloat16"]),
        (["dtype=float16", "kernel=lola"], []),
        (["flax dtype=float16", "triton"], ["flax dtype=float16", "triton"]),
        (["flax dtype=float16", "flax dtype=bfloat16"], ["flax dtype=float16", "flax dtype=bfloat16"]),
        (["-m", "flax", "triton", "batch=1,2"], ["flax", "triton"]),
        (["flax"], []),
        ([], []),
        (["resume=latest", "pairs=3"], []),
    ],
)
def test_the_first_two_words_are_the_sides(arguments, words):
    found, rest = sides.split(arguments)
    assert found == words and rest == [a for a in arguments if a not in words]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "compare takes two sides, before all else; expected IMPLEMENTATION[:VARIANT][@REVISION]"),
        (["torch_eager"], "two sides"),
        (
            ["torch_eagr", "torch_eager"],
            "side A (torch_eagr): unknown implementation 'torch_eagr': did you mean torch_eager",
        ),
        (["torch_eager@nosuch", "torch_eager"], "unknown revision 'nosuch'"),
        (["torch_eager", "torch_eager", "pair=3"], "did you mean pairs"),
        (
            ["torch_eager", "torch_eager", "--fail-slower", "much"],
            "fail_slower is 'much': expected a share such as 3% or 0.03",
        ),
        (["torch_eager", "torch_eager", "--fail-slower"], "fail_slower is ''"),
        (
            ["torch_eager", "torch_eager", "pairs=4", "--fail-slower", "3%"],
            "pairs=4: fail_slower needs an interval, and that 5 pairs or more",
        ),
        (["resume=nosuch"], "no compare run there"),
        (["flax", "triton", "kernel=lola", "--resume"], "leave out flax triton kernel=lola"),
    ],
)
def test_a_wrong_comparison_is_answered_by_one_line(tmp_path, monkeypatch, capfd, arguments, named):
    from fusebench.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discovery, "HOME", FIXTURES / "kernels")
    assert (
        main(["compare", *arguments[:2], *(["kernel=double"] if "torch_eager" in arguments else []), *arguments[2:]])
        == 2
    )
    captured = capfd.readouterr()
    assert len(captured.err.splitlines()) == 1 and named in captured.err, captured.err
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_two_revisions_by_their_real_workers(tmp_path):
    """One pair of processes: kernels of a commit and of the working tree, which has ten times the work, and one that crashes."""
    mine = tmp_path / "mine" / "double"
    mine.mkdir(parents=True)
    shutil.copy(FIXTURES / "kernels" / "double" / "kernel.py", mine)
    program = (FIXTURES / "planted" / "double" / "slowed.py").read_text()
    file = mine / "slowed.py"
    file.write_text(program)
    (mine / "z_dies.py").write_text(
        program.replace("    def call(x):\n", "    def call(x):\n        __import__('os')._exit(7)\n")
    )
    git = ["git", "-C", str(mine.parent), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    file.write_text(changed := program.replace('"base": 1,', '"base": 10,'))
    done = fusebench(
        "compare", "@HEAD", "@.", "kernel=double", "implementation=[slowed:base,z_dies:base]", f"path={mine.parent}", "batch=1000",
        "pairs=1", "rounds=3", "time_s=0.02", "device=cpu", cwd=tmp_path,
    )  # fmt: skip
    (home,) = (tmp_path / "results").iterdir()
    slowed, dies = store.read(home, verdicts.Outcome, verdicts.FILE)
    assert done.returncode == 1 and slowed.status == "ok", done.stdout + done.stderr
    a_s, b_s = slowed.estimate.medians
    assert slowed.estimate.result.ratio > 3 and b_s > 3 * a_s
    assert slowed.notes[-1] == "an interval needs 5 pairs, and a verdict an interval: resume=latest pairs=10", (
        "and perhaps that this machine is busy"
    )
    assert (dies.status, dies.reason) == ("crashed", "side A: the worker ended: exit code 7")
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    a, b, *_ = store.read(home, PairRecord)
    sources = a.record.source, b.record.source
    assert [source.git_commit for source in sources] == [head, head + "+"]
    assert sources[0].sha256 != sources[1].sha256 and len(a.turns) == len(b.turns) == 3
    assert f"A  @HEAD  (commit {head[:10]})" in done.stdout and file.read_text() == changed, (
        "the working tree is left alone"
    )
