"""What a comparison comes to: from the records of its pairs to a verdict, a line in comparison.jsonl and a row in a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.markup import escape

from fusebench import report
from fusebench.comparison import statistics as comparison
from fusebench.comparison.pairs import Match
from fusebench.comparison.sides import case_name
from fusebench.records import store
from fusebench.records.record import SCHEMA
from fusebench.settings import Clock
from fusebench.terminal import console, print_table
from fusebench.timing.summary import seconds

FILE = "comparison.jsonl"  # of a run's outcomes
MANY = 100  # pairs: who needs more has a noisy machine, not too few pairs
COLOURS = {"slower": "bold red", "faster": "green", "same": "green", "too noisy": "yellow", "too few pairs": "yellow"}


@dataclass(frozen=True)
class Estimate:
    """What pairs show: the verdict with its interval at the `confidence`, the median seconds of either side, the ratio of each
    pair, and the regime with its caches."""

    result: comparison.Result
    confidence: float
    medians: tuple[float, float]
    ratios: tuple[float, ...]
    regime: str
    self_check: comparison.SelfCheck | None = None


@dataclass(frozen=True)
class Outcome:
    """What a comparison came to. `status` is `ok` where both sides were, and then `estimate` is there; otherwise it is the status of the
    side that ended it. `fails` says whether the exit code is to be 1."""

    comparison: str
    kernel: str
    cases: tuple[str, str]
    labels: tuple[str, str]
    pairs: int
    lost: int
    status: str = "ok"
    reason: str | None = None
    fails: bool = False
    notes: tuple[str, ...] = ()
    reproduce: str = ""
    estimate: Estimate | None = None
    schema: int = SCHEMA


def outcome(match: Match, confidence: float, allowed: float | None, resamples: int) -> Outcome:
    """What the pairs of a match come to, where B may be slower by the share `allowed`."""
    a, b = match.cells
    found = Outcome(
        match.id, a.case.kernel, (case_name(a), case_name(b)), (a.label, b.label), len(match.made), match.lost
    )
    bad = match.end or (match.bad[-1] if match.bad and not match.made else None)
    if bad:
        status, reason = bad.record.status, f"side {bad.side}: {bad.record.reason}"
        return replace(found, status=status, reason=reason, fails=status != "skipped", reproduce=bad.record.reproduce)
    notes = []
    if match.lost:
        notes.append(f"{match.lost} of {len(match.pairs)} pairs lost: {match.bad[-1].record.reason}")
    if not match.made:
        return replace(found, status="skipped", reason="no pair was finished", notes=tuple(notes))
    for side, pairs in zip("AB", zip(*match.made, strict=True), strict=True):
        if changed := dict.fromkeys(change for pair in pairs for change in pair.record.changed):
            notes.append(f"side {side} changed its process: {'; '.join(changed)}")
    medians = [[[turn.median for turn in side.turns] for side in pair] for pair in match.made]
    ratios = [comparison.pair_ratio(*pair) for pair in medians]
    result = comparison.compare(ratios, confidence)
    turn = match.made[0][0].turns[0]
    busy = [t.machine_busy for pair in match.made for side in pair for t in side.turns]
    if 2 * sum(busy) >= len(busy):
        notes.append(f"machine busy: {turn.remedy} helps")
    if result.verdict in ("too noisy", "too few pairs"):
        notes.append(_advice(result))
    fails = allowed is not None and result.surely_slower(allowed)
    if allowed is not None and fails:
        notes.append(f"slower by at least {result.low - 1:.1%}; {allowed:.1%} was allowed")
    elif allowed is not None and result.perhaps_slower(allowed):
        notes.append(f"may be slower by more than {allowed:.1%}: not sure enough to fail")
    check = None
    if resamples and len(ratios) >= comparison.PAIRS:
        check = comparison.self_check(ratios, comparison.PAIRS, resamples, confidence)
    estimate = Estimate(
        result, confidence, (float(np.median([p[0] for p in medians])), float(np.median([p[1] for p in medians]))),
        tuple(ratios), f"{turn.regime} {turn.cache}", check,
    )  # fmt: skip
    return replace(found, fails=fails, notes=tuple(notes), estimate=estimate)


def _advice(result: comparison.Result) -> str:
    """What to do about an interval that is too wide."""
    if result.verdict == "too few pairs":
        needs = f"an interval needs {comparison.FEWEST} pairs, and a verdict an interval"
        return f"{needs}: resume=latest pairs={comparison.PAIRS}"
    needed = result.pairs_needed()
    if needed > MANY:
        return "too noisy for more pairs to help: stop what else runs here, or raise time_s"
    return f"about {needed} pairs would tell (resume=latest pairs={needed}), or a quieter machine, or a larger time_s"


def show(outcomes: Sequence[Outcome], sides: Sequence[str]) -> None:
    """Prints the sides, a row for each comparison with a verdict, and under the table what there is to say of each."""
    out = console()
    out.print()
    for line in sides:
        out.print(escape(line), highlight=False)
    if rows := [(o, o.estimate) for o in outcomes if o.estimate]:
        interval = f"{rows[0][1].confidence * 100:.3g} % interval"
        left = ("kernel", "case", "A", "B")
        cells = [
            (
                o.kernel, " | ".join(dict.fromkeys(o.cases)), *map(escape, o.labels), *map(seconds, estimate.medians),
                f"{estimate.result.ratio:.3f}", _interval(estimate.result), f"[{COLOURS[estimate.result.verdict]}]{estimate.result.verdict}[/]",
                str(o.pairs), estimate.regime,
            )
            for o, estimate in rows
        ]  # fmt: skip
        # the lines above say what the sides are
        same = [side for n, side in enumerate("AB") if len({o.labels[n] for o, _ in rows}) == 1]
        right = ("A's time", "B's time", "B ÷ A", interval, "B is", "pairs", "regime")
        print_table(out, left, right, cells, ("regime", "pairs", "A's time", "B's time", *same))
    ended = ((f"{o.status}  ", str(o.reason), o) for o in outcomes if o.status != "ok")
    for said, those in _together(ended, len(outcomes)):
        out.print(said, highlight=False)
        for reproduce in dict.fromkeys(o.reproduce for o in those if o.reproduce):
            out.print(f"[dim]again: {escape(reproduce)}[/]", highlight=False, soft_wrap=True)
    for said, _ in _together((("", note, o) for o in outcomes for note in o.notes), len(outcomes)):
        out.print(said, highlight=False)
    for o in outcomes:
        name = _name(o)
        if o.estimate and (check := o.estimate.self_check):
            out.print(
                f"{escape(name)}: {check.comparisons} comparisons of {comparison.PAIRS} pairs drawn from {o.pairs}: "
                f"{check.false} false verdicts (rate at most {check.false_at_most:.2%}); "
                f"5 % slower found {check.found} times (share at least {check.found_at_least:.2%}); limits of 95 %",
                highlight=False, soft_wrap=True,
            )  # fmt: skip


def _name(outcome: Outcome) -> str:
    return f"{outcome.kernel} {' | '.join(dict.fromkeys(outcome.cases))} {' | '.join(dict.fromkeys(outcome.labels))}"


def _together(remarks: Iterable[tuple[str, str, Outcome]], count: int) -> Iterator[tuple[str, list[Outcome]]]:
    """A line for each remark, (what stands in front, what is said, of which), and those of the `count` comparisons that it is
    of: what is said of several is said once."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for front, text, outcome in remarks:
        found.setdefault((front, text), []).append(outcome)
    for (front, text), those in found.items():
        of = "; ".join(map(_name, those)) if len(those) < count or count == 1 else f"all {count} comparisons"
        yield escape(f"{front}{of}: {text}"), those


def _interval(result: comparison.Result) -> str:
    return f"{result.low:.3f} … {result.high:.3f}" if math.isfinite(result.high) else "none"


def footer(clock: Clock, wall_s: float, folder: Path) -> None:
    """One line of where the wall time went, one of where the records are."""
    report.wall_time(clock, wall_s)
    if files := [name for name in (store.FILE, FILE) if (folder / name).exists()]:
        console().print(f"records: {folder}/{', '.join(files)}", soft_wrap=True)
