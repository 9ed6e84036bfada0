"""Whether the fastest config of a search is faster indeed: pairs of processes, as `fusebench compare` makes them, against the default
and against the runner-up. A tie keeps the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fusebench import provenance, tuned
from fusebench.comparison import verdicts
from fusebench.comparison.pairs import Match, Side, add_recorded, run_pairs
from fusebench.records.record import Record
from fusebench.settings import Run
from fusebench.tuning import strategies
from fusebench.tuning.study import Found, seconds

FILE = "pairs.jsonl"  # beside the run's records


@dataclass(frozen=True)
class Plan:
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


def decide(this: Run, found: Found, plan: Plan, on_pair: Callable[[Match], None]) -> Decision | None:
    """Compares the fastest config of a search with the default and the runner-up. None where nothing has a time. Raises StorageError.

    Where the runner-up is faster than the fastest in pairs, it takes its place. Pairs on record are not made again.
    """
    ranked = found.ranked
    if not ranked:
        return None
    default = found.records.get(strategies.key(found.default))
    if default is None or seconds(default) is None:
        reason = f"{default.status}: {default.reason}" if default else "it was not tried"
        return Decision(found, ranked[0], False, f"the default has no time ({reason})", _s(ranked[0]), float("nan"))
    if ranked[0].id == default.id:
        return Decision(found, default, True, "no config was faster", _s(default), _s(default))
    best, others = ranked[0], [r for r in ranked[1:] if r.id != default.id]
    matches = [Match((default.cell, best.cell))]
    matches += [Match((others[0].cell, best.cell))] if others else []
    outcomes = _compare(this, matches, plan, on_pair)
    if len(outcomes) > 1 and _is(outcomes[1], "slower"):
        best = others[0]
        outcomes = [*_compare(this, [Match((default.cell, best.cell))], plan, on_pair), *outcomes[1:]]
    first = outcomes[0]
    times = first.estimate.medians if first.estimate else (_s(default), _s(best))
    if _is(first, "faster") and first.estimate:
        why = f"{1 - first.estimate.result.ratio:.1%} faster than the default in {first.pairs} pairs"
        return Decision(found, best, False, why, times[1], times[0], tuple(outcomes))
    said = first.estimate.result.verdict if first.estimate else f"{first.status}: {first.reason}"
    why = f"the fastest config is not surely faster in pairs of processes ({said})"
    return Decision(found, default, True, why, times[0], times[0], tuple(outcomes))


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
    this: Run, matches: Sequence[Match], plan: Plan, on_pair: Callable[[Match], None]
) -> list[verdicts.Outcome]:
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


def pairs_of(found: Sequence[Found]) -> Iterator[Found]:
    """Those whose fastest config has to be compared with another."""
    for one in found:
        if one.ranked and strategies.key(one.ranked[0].cell.config) != strategies.key(one.default):
            yield one


def save(decisions: Sequence[Decision], this: Run) -> list[str]:
    """Writes the decisions into tuned.json of their kernels' folders. Returns a line for each folder that was written, or why not."""
    said = []
    folders: dict[Path, list[tuned.Entry]] = {}
    for decision in decisions:
        cell = decision.kept.cell
        file = this.kernels[cell.case.kernel].implementations[cell.implementation].file
        folders.setdefault(file.parent, []).append(entry(decision, this))
    for folder, entries in folders.items():
        try:
            tuned.write(folder, entries)
            said.append(f"{len(entries)} tuned: {folder / tuned.FILE}")
        except (OSError, ValueError) as error:
            said.append(f"{folder / tuned.FILE} was not written: {error}")
    return said
