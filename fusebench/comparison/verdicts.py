"""What a comparison comes to: from the records of its pairs to a verdict, a line in comparison.jsonl and a row in a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.markup import escape

from fusebench import report
from fusebench.comparison import statistics as comparison
from fusebench.comparison.pairs import Match
from fusebench.contract import Cell
from fusebench.settings import Clock

MANY = 100  # pairs: who needs more has a noisy machine, not too few pairs
COLOURS = {"slower": "bold red", "faster": "green", "same": "green", "too noisy": "yellow"}


def outcome(match: Match, confidence: float, allowed: float | None, resamples: int) -> dict[str, Any]:
    """The record of a comparison. Its status is `ok` where both sides were, and then it has a verdict; otherwise the status
    and reason of the side that ended it. `fails` says whether the exit code is to be 1."""
    a, b = match.cells
    found: dict[str, Any] = {
        "comparison": match.id, "kernel": a.case.kernel, "cases": [_case(a), _case(b)], "labels": [a.label, b.label],
        "status": "ok", "reason": None, "pairs": len(match.made), "lost": match.lost, "fails": False, "notes": [],
    }  # fmt: skip
    bad = match.end or (match.bad[-1] if match.bad and not match.made else None)
    if bad:
        found |= {"status": bad["status"], "reason": f"side {bad['side']}: {bad['reason']}"}
        return found | {"fails": bad["status"] != "skipped", "reproduce": bad.get("reproduce")}
    if match.lost:
        found["notes"].append(f"{match.lost} of {len(match.pairs)} pairs lost: {match.bad[-1]['reason']}")
    if not match.made:
        return found | {"status": "skipped", "reason": "no pair was finished"}
    medians = [[[turn["median"] for turn in record["turns"]] for record in pair] for pair in match.made]
    ratios = [comparison.pair_ratio(*pair) for pair in medians]
    result = comparison.compare(ratios, confidence)
    turn = match.made[0][0]["turns"][0]
    found |= asdict(result) | {
        "confidence": confidence, "medians": [float(np.median([p[side] for p in medians])) for side in (0, 1)],
        "ratios": ratios, "regime": " ".join(str(turn[key]) for key in ("regime", "cache") if key in turn),
    }  # fmt: skip
    if result.verdict == "too noisy":
        found["notes"].append(_advice(result))
    if allowed is not None:
        found["fails"] = result.surely_slower(allowed)
        if found["fails"]:
            found["notes"].append(f"slower by at least {result.low - 1:.1%}; {allowed:.1%} was allowed")
        elif result.perhaps_slower(allowed):
            found["notes"].append(f"may be slower by more than {allowed:.1%}: not sure enough to fail")
    if resamples and len(ratios) >= comparison.PAIRS:
        check = comparison.self_check(ratios, comparison.PAIRS, resamples, confidence)
        found["self_check"] = asdict(check) | {
            "false_at_most": check.false_at_most,
            "found_at_least": check.found_at_least,
        }
    return found


def _case(cell: Cell) -> str:
    """The case by name, with what else tells its inputs from those of another row."""
    hard = "" if cell.inputs == "plain" else f" {cell.inputs} inputs"
    return cell.case.id + hard + (f" seed={cell.seed}" if cell.seed else "")


def _advice(result: comparison.Result) -> str:
    """What to do about an interval that is too wide."""
    if result.pairs < comparison.FEWEST:
        return f"an interval needs {comparison.FEWEST} pairs: resume=latest pairs={comparison.PAIRS}"
    needed = result.pairs_needed()
    if needed > MANY:
        return "too noisy for more pairs to help: stop what else runs here, or raise time_s"
    return f"about {needed} pairs would tell (resume=latest pairs={needed}), or a quieter machine, or a larger time_s"


def show(outcomes: Sequence[Mapping[str, Any]], sides: Sequence[str]) -> None:
    """Prints the sides, a row for each comparison with a verdict, and under the table what there is to say of each."""
    out = report.console()
    out.print()
    for line in sides:
        out.print(escape(line), highlight=False)
    if told := [o for o in outcomes if o["status"] == "ok"]:
        interval = f"{told[0]['confidence'] * 100:.3g} % interval"
        left = ("kernel", "case", "A", "B")
        table = report.columns(left, ("A's time", "B's time", "B ÷ A", interval, "B is", "pairs", "regime"))
        for o in told:
            table.add_row(
                o["kernel"], " | ".join(dict.fromkeys(o["cases"])), *map(escape, o["labels"]), *map(report.seconds, o["medians"]),
                f"{o['ratio']:.3f}", _interval(o), f"[{COLOURS[o['verdict']]}]{o['verdict']}[/]", str(o["pairs"]), o["regime"],
            )  # fmt: skip
        out.print(table)
    for o in outcomes:
        name = f"{o['kernel']} {' | '.join(dict.fromkeys(o['cases']))} {' | '.join(dict.fromkeys(o['labels']))}"
        if o["status"] != "ok":
            out.print(f"{o['status']}  {escape(name)}: {escape(str(o['reason']))}", highlight=False)
        if o.get("reproduce"):
            out.print(f"[dim]again: {escape(o['reproduce'])}[/]", highlight=False)
        for note in o["notes"]:
            out.print(f"{escape(name)}: {escape(note)}", highlight=False)
        if check := o.get("self_check"):
            out.print(
                f"{escape(name)}: {check['comparisons']} comparisons of {comparison.PAIRS} pairs drawn from {o['pairs']}: "
                f"{check['false']} false verdicts (rate at most {check['false_at_most']:.2%}); "
                f"5 % slower found {check['found']} times (share at least {check['found_at_least']:.2%}); limits of 95 %",
                highlight=False, soft_wrap=True,
            )  # fmt: skip


def _interval(o: Mapping[str, Any]) -> str:
    return f"{o['low']:.3f} … {o['high']:.3f}" if math.isfinite(o["high"]) else "none"


def footer(clock: Clock, wall_s: float, folder: object) -> None:
    """One line of where the wall time went, one of where the records are."""
    report.wall_time(clock, wall_s)
    report.console().print(f"records: {folder}/records.jsonl, comparison.jsonl", soft_wrap=True)
