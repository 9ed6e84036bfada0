"""Whether the fastest config of a search is faster indeed: pairs of processes, as `fusebench compare` makes them, against the default
and against the runner-up. A tie keeps the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fusebench import provenance, tuned
from fusebench.comparison import verdicts
from fusebench.comparison.pairs import Match, Side, add_recorded, run_pairs
from fusebench.comparison.statistics import SAME
from fusebench.records.record import Record
from fusebench.settings import Run
from fusebench.terminal import counted
from fusebench.tuning import strategies
from fusebench.tuning.study import Found, Search, seconds

FILE = "pairs.jsonl"  # beside the run's records


@dataclass(frozen=True)
class PairPlan:
    """How many pairs and rounds, and the confidence of the intervals, as in compare."""

    pairs: int
    rounds: int
    confidence: float


@dataclass(frozen=True)
class Decision:
    """What a study's search came to: the record of the config that is kept, whether that is the default, why, the seconds of it and
    of the default, and the comparisons that were made."""

    found: Found
    kept: Record
    is_default: bool
    why: str
    time_s: float
    default_s: float
    outcomes: tuple[verdicts.Outcome, ...] = ()


@dataclass
class _Contest:
    """A study whose fastest config has to win: against the default, and against the runner-up where there is another."""

    found: Found
    default: Record
    best: Record
    runner_up: Record | None
    outcomes: list[verdicts.Outcome] = field(default_factory=list)

    def matches(self) -> list[Match]:
        others = [self.default, *([self.runner_up] if self.runner_up else [])]
        return [Match((other.cell, self.best.cell)) for other in others]


def decide(this: Run, found: Sequence[Found], plan: PairPlan, on_pair: Callable[[Match], None]) -> list[Decision]:
    """Compares the fastest config of each search with the default and the runner-up; searches without a time have no decision. Raises
    StorageError.

    Where the runner-up is faster than the fastest in pairs, it takes its place. A pair's processes serve all searches; pairs on record
    are not made again.
    """
    decisions = {place: decision for place, one in enumerate(found) if (decision := _without_contest(one))}
    contests = {place: _contest(one) for place, one in enumerate(found) if one.ranked and place not in decisions}
    _compare_all(this, list(contests.values()), plan, on_pair)
    beaten = [c for c in contests.values() if len(c.outcomes) > 1 and _is(c.outcomes[1], "slower")]
    for contest in beaten:
        assert contest.runner_up
        contest.best, contest.runner_up = contest.runner_up, None
    _compare_all(this, beaten, plan, on_pair)
    decisions |= {place: _decision(contest) for place, contest in contests.items()}
    return [decisions[place] for place in sorted(decisions)]


def settled(found: Sequence[Found], search: Search) -> list[Decision]:
    """What is decided without pairs of those searches that came to their end, for a run that was interrupted."""
    ended = [one for one in found if one.fits and len(one.records) >= search.budget(one.fits)]
    return [decision for one in ended if (decision := _without_contest(one))]


def _without_contest(found: Found) -> Decision | None:
    """The decision where there is nothing to compare the fastest config with."""
    ranked = found.ranked
    if not ranked:
        return None
    default = found.records.get(strategies.key(found.default))
    if default is None or seconds(default) is None:
        reason = f"{default.status}: {default.reason}" if default else "it was not tried"
        return Decision(found, ranked[0], False, f"the default has no time ({reason})", _s(ranked[0]), float("nan"))
    if ranked[0].id == default.id:
        return Decision(found, default, True, "no config was faster", _s(default), _s(default))
    if _s(ranked[0]) * (1 + SAME) >= _s(default):
        why = f"the fastest config is {1 - _s(ranked[0]) / _s(default):.1%} faster: a tie"
        return Decision(found, default, True, why, _s(default), _s(default))
    return None


def _contest(found: Found) -> _Contest:
    default, ranked = found.records[strategies.key(found.default)], found.ranked
    others = [r for r in ranked[1:] if r.id != default.id]
    return _Contest(found, default, ranked[0], others[0] if others else None)


def _compare_all(this: Run, contests: Sequence[_Contest], plan: PairPlan, on_pair: Callable[[Match], None]) -> None:
    """Adds to each contest the outcomes of its matches, before those that it has."""
    asked = [contest.matches() for contest in contests]
    outcomes = iter(_compare(this, [match for matches in asked for match in matches], plan, on_pair))
    for contest, matches in zip(contests, asked, strict=True):
        contest.outcomes[:0] = [next(outcomes) for _ in matches]


def _decision(contest: _Contest) -> Decision:
    found, first = contest.found, contest.outcomes[0]
    times = first.estimate.medians if first.estimate else (_s(contest.default), _s(contest.best))
    outcomes = tuple(contest.outcomes)
    if _is(first, "faster") and first.estimate:
        why = f"{1 - first.estimate.result.ratio:.1%} faster than the default in {first.pairs} pairs"
        return Decision(found, contest.best, False, why, times[1], times[0], outcomes)
    said = first.estimate.result.verdict if first.estimate else f"{first.status}: {first.reason}"
    why = f"the fastest config is not surely faster in pairs of processes ({said})"
    return Decision(found, contest.default, True, why, times[0], times[0], outcomes)


def without_pairs(found: Found) -> Decision | None:
    """The fastest config of a search as it was measured once (confirm=false)."""
    ranked, default = found.ranked, found.records.get(strategies.key(found.default))
    if not ranked:
        return None
    default_s = (seconds(default) if default else None) or float("nan")
    same = default is not None and ranked[0].id == default.id
    return Decision(found, ranked[0], same, "not confirmed by pairs of processes", _s(ranked[0]), default_s)


def entry(decision: Decision, this: Run) -> tuned.Entry:
    """What tuned.json keeps of a decision."""
    record, cell = decision.kept, decision.kept.cell
    kernel = this.kernels[cell.case.kernel].sources
    files = {
        name: digest for name, digest in (record.source.files if record.source else {}).items() if name not in kernel
    }
    return tuned.Entry(
        cell.implementation, cell.variant, record.device.name, cell.case.dtype, cell.case.precision, cell.case.sizes,
        cell.case.options, {} if decision.is_default else cell.config, decision.time_s, decision.default_s, files,
        cell.case.mode,
    )  # fmt: skip


def _compare(
    this: Run, matches: Sequence[Match], plan: PairPlan, on_pair: Callable[[Match], None]
) -> list[verdicts.Outcome]:
    if not matches:
        return []
    add_recorded(this.folder, matches, FILE)
    matches = [Match(m.cells) if _changed(this, m) else m for m in matches]
    sides = [Side(name, replace(this, folder=this.folder / f"side-{name}")) for name in "AB"]
    for match in run_pairs((sides[0], sides[1]), matches, plan.pairs, plan.rounds, this.folder, FILE):
        on_pair(match)
    return [verdicts.outcome(match, plan.confidence, None, 0) for match in matches]


def _changed(this: Run, match: Match) -> bool:
    """Whether a file has changed since the pairs on record were made."""
    return any(
        provenance.changed(side.record.source, this.kernels[side.record.kernel].implementations[side.record.cell.implementation].file, this.roots)
        for pair in match.pairs.values()
        for side in pair
    )  # fmt: skip


def _is(outcome: verdicts.Outcome, verdict: str) -> bool:
    return outcome.estimate is not None and outcome.estimate.result.verdict == verdict


def _s(record: Record) -> float:
    return seconds(record) or float("nan")


def save(decisions: Sequence[Decision], this: Run) -> list[str]:
    """Writes the decisions into tuned.json of their kernels' folders. Returns a line for each folder that was written, or why not."""
    said = []
    folders: dict[Path, list[tuned.Entry]] = {}
    for decision in decisions:
        cell = decision.kept.cell
        if reason := decision.found.misfit(cell.config):
            said.append(
                f"{decision.found.study.name}: not saved, as later runs take no config that does not fit: {reason}"
            )
            continue
        file = this.kernels[cell.case.kernel].implementations[cell.implementation].file
        folders.setdefault(file.parent, []).append(entry(decision, this))
    for folder, entries in folders.items():
        try:
            tuned.write(folder, entries)
            said.append(f"{counted(len(entries), 'config')} saved in {folder / tuned.FILE}")
        except (OSError, ValueError) as error:
            said.append(f"{folder / tuned.FILE} was not written: {error}")
    return said
