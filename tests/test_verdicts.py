"""What a comparison says, from known samples through the command to the printed cell, the kept line and the exit code."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from conftest import FIXTURES
from samples import table_of, timing, untimed
from test_statistics import bootstrap_t

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.comparison import sides, verdicts
from fusebench.comparison import statistics as comparison
from fusebench.comparison.pairs import Match
from fusebench.contract import Cell
from fusebench.records import store
from fusebench.records.record import SCHEMA, PairRecord

KERNEL = ("kernel=double", "case=odd", "device=cpu")


@pytest.fixture(scope="module")
def double():
    return discovery.find_kernels([FIXTURES / "kernels"])["double"]


def cell(double, variant="plus", seed=0, kind="plain"):
    return Cell(make_case(double, "odd"), "torch_eager", variant, seed, kind)


def match_of(double, a, b, regime="isolated", cache="warm", bad=()):
    """A match with a pair for each of `a` and `b`, whose turns took so long; then the `bad` pairs: (side, status, lost)."""
    found = Match((cell(double, "plus"), cell(double, "times")))
    for number, both in enumerate(zip(a, b, strict=True)):
        turns = [tuple(timing([t], regime, cache) for t in times) for times in both]
        found.pairs[number] = tuple(
            PairRecord(untimed(), found.id, side, number, t) for side, t in zip("AB", turns, strict=True)
        )
    for number, (ending, status, lost) in enumerate(bad, len(found.pairs)):
        record = untimed(status=status, reason=f"why {number}", reproduce="do it")
        found.pairs[number] = tuple(PairRecord(record, found.id, side, number, (), ending, lost) for side in "AB")
    return found


def verdict_of(double, ratios, **options):
    """The outcome of pairs with these ratios."""
    given = {"confidence": 0.99, "allowed": None, "resamples": 0} | options
    return verdicts.outcome(match_of(double, [[1.0]] * len(ratios), [[r] for r in ratios]), **given)


# The figures

A = [[10.0, 12.0, 11.0], [10.5, 10.0, 30.0], [11.0, 11.5, 10.0], [9.0, 9.5, 10.0], [10.0, 10.5, 11.0]]  # in ms
B = [[13.0, 15.0, 13.5], [13.0, 12.0, 20.0], [14.0, 14.5, 13.0], [11.0, 12.0, 12.5], [12.5, 13.5, 14.0]]


def printed_row(text):
    """The cells of the only row of a table, by their headings."""
    (row,) = table_of(text, "kernel")
    return row


def test_the_figures_of_a_comparison_are_those_of_its_samples(double, capsys):
    a, b = ([[t / 1e3 for t in turns] for turns in side] for side in (A, B))
    found = verdicts.outcome(match_of(double, a, b), 0.9, None, 0)
    ratios = [statistics.median(y / x for x, y in zip(*pair, strict=True)) for pair in zip(a, b, strict=True)]
    ratio = statistics.geometric_mean(ratios)
    half = bootstrap_t([math.log(r) for r in ratios], 0.9)
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    times = [statistics.median(t for turns in side for t in turns) for side in (a, b)]
    result = found.estimate.result
    assert found.estimate.ratios == pytest.approx(ratios) and found.estimate.medians == pytest.approx(times)
    assert (result.ratio, result.low, result.high) == pytest.approx((ratio, low, high))
    verdicts.show([found], ["A  torch_eager:plus", "B  [x]"])
    out = capsys.readouterr().out
    assert out.startswith("\nA  torch_eager:plus\nB  [x]\n"), "the brackets of a user's list are no markup"
    assert printed_row(out) == {
        "kernel": "double", "case": "odd/float32", "A": "torch_eager:plus", "B": "torch_eager:times", "A's time": "10.5 ms",
        "B's time": "13 ms", "B ÷ A": f"{ratio:.3f}", "90 % interval": f"{low:.3f} … {high:.3f}", "B is": "slower", "pairs": "5",
        "regime": "isolated warm",
    }  # fmt: skip
    assert 1.2 < ratio < 1.35 and result.verdict == "slower"
    turned = verdicts.outcome(match_of(double, b, a), 0.9, None, 0).estimate.result
    assert turned.verdict == "faster" and turned.ratio == pytest.approx(1 / ratio)


def test_what_is_kept_of_a_comparison(double, tmp_path):
    found = verdicts.outcome(match_of(double, A, B, "sustained"), 0.99, None, 0)
    store.append(tmp_path, found)
    kept = json.loads((tmp_path / store.FILE).read_text())
    estimate = kept.pop("estimate")
    assert kept == {
        "comparison": f"{cell(double).id} | {cell(double, 'times').id}", "kernel": "double", "cases": ["odd/float32"] * 2,
        "labels": ["torch_eager:plus", "torch_eager:times"], "status": "ok", "reason": None, "pairs": 5, "lost": 0, "fails": False,
        "notes": [], "reproduce": "", "schema": SCHEMA,
    }  # fmt: skip
    assert estimate == {
        "result": vars(found.estimate.result), "confidence": 0.99, "medians": list(found.estimate.medians), "ratios": list(found.estimate.ratios),
        "regime": "sustained warm", "self_check": None,
    }  # fmt: skip
    assert estimate["result"]["verdict"] == "slower" and store.read(tmp_path, verdicts.Outcome) == [found]


def test_an_interval_without_an_end_is_kept(double, tmp_path):
    found = verdict_of(double, [1.2] * 4)
    assert found.estimate.result.high == math.inf
    store.append(tmp_path, found)
    assert store.read(tmp_path, verdicts.Outcome) == [found]


@pytest.mark.parametrize(
    ("ratios", "verdict", "colour"),
    [
        ([1.0, 1.001, 0.999, 1.0, 1.0005], "same", "green"),
        ([1.019] * 5, "same", "green"),
        ([0.9, 0.901, 0.899, 0.9, 0.9005], "faster", "green"),
        ([1.1, 1.101, 1.099, 1.1, 1.1005], "slower", "bold red"),
        ([0.8, 1.2, 0.9, 1.3, 1.0], "too noisy", "yellow"),
        ([1.1, 1.1, 1.1, 1.1], "too few pairs", "yellow"),
    ],
)
def test_the_verdict_is_of_b(double, ratios, verdict, colour, capsys):
    found = verdict_of(double, ratios)
    assert (found.estimate.result.verdict, verdicts.COLOURS[verdict]) == (verdict, colour)
    verdicts.show([found], [])
    assert printed_row(capsys.readouterr().out)["B is"] == verdict


def test_what_makes_a_comparison_sure(double):
    noisy = [0.9, 1.1, 1.02, 1.0, 1.05]
    assert verdict_of(double, noisy[:3]).notes == (
        "an interval needs 5 pairs, and a verdict an interval: resume=latest pairs=10",
    )
    needed = comparison.compare(noisy).pairs_needed()
    assert needed > 100 and verdict_of(double, noisy).notes == (
        "too noisy for more pairs to help: stop what else runs here, or raise time_s",
    )
    some = [1.0, 1.02, 1.01, 1.03, 1.025]
    needed = comparison.compare(some).pairs_needed()
    assert 5 < needed < 100 and verdict_of(double, some).notes == (
        f"about {needed} pairs would tell (resume=latest pairs={needed}), or a quieter machine, or a larger time_s",
    )


@pytest.mark.parametrize(("busy", "told"), [(0, False), (2, False), (3, True), (5, True)])
def test_a_busy_machine_is_told_where_half_of_the_turns_met_one(double, busy, told):
    """Five pairs of a turn a side, of which B's were disturbed `busy` times, and A's always or never."""
    match = match_of(double, [[1.0]] * 5, [[1.0]] * 5)
    for number, (a, b) in match.pairs.items():
        a, b = (
            replace(s, turns=tuple(replace(t, waiting=w) for t in s.turns))
            for s, w in ((a, 0.75 if busy > 2 else 0.25), (b, 0.75 if number < busy else None))
        )
        match.pairs[number] = (a, b)
    assert ("machine busy: threads=1 or an idle machine helps" in verdicts.outcome(match, 0.99, None, 0).notes) == told


@pytest.mark.parametrize(("needed", "told"), [(100, "about 100 pairs"), (101, "too noisy for more")])
def test_more_than_a_hundred_pairs_are_not_advised(monkeypatch, needed, told):
    monkeypatch.setattr(comparison.Result, "pairs_needed", lambda self: needed)
    assert verdicts._advice(comparison.Result(1.0, 0.9, 1.1, "too noisy", 5)).startswith(told)
    assert verdicts._advice(comparison.Result(1.0, 0.0, math.inf, "too few pairs", 4)).startswith("an interval needs")


def test_a_narrow_terminal_keeps_the_ratio_its_interval_and_the_verdict(double, capsys, monkeypatch):
    a, b = ([[t / 1e3 for t in turns] for turns in side] for side in (A, B))
    found = verdicts.outcome(match_of(double, a, b), 0.9, None, 0)
    verdicts.show([found], [])
    whole = printed_row(capsys.readouterr().out)
    monkeypatch.setenv("COLUMNS", "80")
    verdicts.show([found], [])
    out = capsys.readouterr().out
    kept = ("kernel", "case", "B ÷ A", "90 % interval", "B is")
    row = printed_row(out)
    assert {h: row[h] for h in kept} == {h: whole[h] for h in kept} and max(map(len, out.splitlines())) <= 80
    assert "left out in 80 columns: regime, pairs, A's time, B's time" in out


def test_few_pairs_have_no_interval_in_the_table(double, capsys):
    verdicts.show([verdict_of(double, [1.2] * 4)], [])
    row = printed_row(capsys.readouterr().out)
    assert (row["99 % interval"], row["B ÷ A"], row["pairs"]) == ("none", "1.200", "4")


# A limit


@pytest.mark.parametrize(
    ("ratio", "fails", "note"),
    [
        (1.0301, True, "slower by at least 3.0%; 3.0% was allowed"),
        (1.03, False, None),
        (0.9, False, None),
    ],
)
def test_a_limit_is_broken_where_the_lower_end_is_beyond_it(double, ratio, fails, note):
    found = verdict_of(double, [ratio] * 5, allowed=0.03)
    assert found.fails == fails and found.notes == ((note,) if note else ())
    assert not verdict_of(double, [ratio] * 5).fails, "no limit, no failure"


def test_a_limit_below_what_counts_as_a_difference_is_broken_all_the_same(double):
    """Within 2 % of each other they are the `same`; `fail_slower=1%` asks for less."""
    found = verdict_of(double, [1.015, 1.0152, 1.0148, 1.015, 1.0151], allowed=0.01)
    assert found.estimate.result.verdict == "same" and found.fails
    assert found.notes == (f"slower by at least {(found.estimate.result.low - 1) * 100:.1f}%; 1.0% was allowed",)


def test_what_may_break_a_limit_is_told(double):
    found = verdict_of(double, [1.0, 1.02, 1.01, 1.03, 1.025], allowed=0.025)
    assert not found.fails and found.notes[1] == "may be slower by more than 2.5%: not sure enough to fail"
    slower = verdict_of(double, [1.1, 1.12, 1.08, 1.11, 1.09], allowed=0.0)
    low = comparison.compare([1.1, 1.12, 1.08, 1.11, 1.09]).low
    assert slower.fails and slower.notes == (f"slower by at least {(low - 1) * 100:.1f}%; 0.0% was allowed",)


# Pairs that are lost, and sides that are not ok


def test_lost_pairs_are_told_and_do_not_count(double, capsys):
    match = match_of(double, A, B, bad=[("A", "crashed", True), ("B", "timeout", True)])
    found = verdicts.outcome(match, 0.99, None, 0)
    assert (found.status, found.pairs, found.lost, found.notes) == ("ok", 5, 2, ("2 of 7 pairs lost: why 6",))
    verdicts.show([found], [])
    out = capsys.readouterr().out
    assert "double odd/float32 torch_eager:plus | torch_eager:times: 2 of 7 pairs lost: why 6\n" in out


@pytest.mark.parametrize(
    ("bad", "status", "reason", "fails"),
    [
        ([("B", "wrong", False)], "wrong", "side B: why 5", True),
        ([("A", "skipped", False)], "skipped", "side A: why 5", False),
        ([("A", "crashed", True)] * 6, "crashed", "side A: why 10", True),
    ],
)
def test_a_side_that_is_not_ok_has_no_ratio(double, bad, status, reason, fails, capsys):
    found = verdicts.outcome(match_of(double, A, B, bad=bad), 0.99, 0.03, 0)
    assert (found.status, found.reason, found.fails, found.estimate) == (status, reason, fails, None)
    assert found.reproduce == "do it" and found.notes == ()
    verdicts.show([found], [])
    out = capsys.readouterr().out
    assert (
        f"{status}  double odd/float32 torch_eager:plus | torch_eager:times: {reason}\nagain: do it\n" in out
        and "B ÷ A" not in out
    )


@pytest.mark.parametrize("status", ["crashed", "timeout", "implausible"])
def test_one_lost_pair_and_no_other_is_what_the_comparison_comes_to(double, status):
    found = verdicts.outcome(match_of(double, [], [], bad=[("A", status, True)]), 0.99, None, 0)
    assert (found.status, found.lost, found.pairs, found.fails) == (status, 1, 0, True)


def test_no_pair_is_no_verdict(double):
    found = verdicts.outcome(match_of(double, [], []), 0.99, 0.03, 0)
    assert (found.status, found.reason, found.fails) == ("skipped", "no pair was finished", False)


def test_a_row_says_what_tells_its_inputs_from_anothers(double, capsys):
    assert [sides.case_name(cell(double, seed=s, kind=k)) for s, k in ((0, "plain"), (3, "plain"), (3, "nan"), (0, "inf"))] == [
        "odd/float32", "odd/float32 seed=3", "odd/float32 nan inputs seed=3", "odd/float32 inf inputs",
    ]  # fmt: skip
    match = match_of(double, A, B)
    match.cells = (match.cells[0], replace(match.cells[0], seed=3))
    verdicts.show([verdicts.outcome(match, 0.99, None, 0)], [])
    assert printed_row(capsys.readouterr().out)["case"] == "odd/float32 | odd/float32 seed=3"


@pytest.mark.parametrize(("count", "checked"), [(9, False), (10, True)])
def test_a_self_check_needs_as_many_pairs_as_a_comparison(double, count, checked, capsys):
    ratios = np.exp(np.linspace(-0.04, 0.041, count))
    found = verdict_of(double, ratios, confidence=0.6, resamples=40)
    assert bool(found.estimate.self_check) == checked and verdict_of(double, ratios).estimate.self_check is None
    if checked:
        check = comparison.self_check(found.estimate.ratios, 10, 40, 0.6)
        assert found.estimate.self_check == check and check.comparisons == 40 and check.false
        verdicts.show([found], [])
        assert (
            f"40 comparisons of 10 pairs drawn from 10: {check.false} false verdicts (rate at most {check.false_at_most:.2%}); "
            f"5 % slower found {check.found} times (share at least {check.found_at_least:.2%}); limits of 95 %"
        ) in " ".join(capsys.readouterr().out.split())
