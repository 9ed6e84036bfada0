"""The processes of a comparison: pairs of them, one of each side, alive side by side and working in turns.

A pair builds both cells, has their outputs judged by the same judge as every run (run.py), and times them in rounds. Every
pair leaves a line for each side in records.jsonl as it ends.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fusebench import provenance
from fusebench.case_data import CaseData
from fusebench.cell import Trial, doubted, rated, release, with_timing
from fusebench.contract import Cell
from fusebench.folder import scratch
from fusebench.records import store
from fusebench.records.record import PairRecord
from fusebench.run import start_workers, worker_keys
from fusebench.settings import Run
from fusebench.timing.summary import Timing
from fusebench.workers.pool import Pool

# What costs a pair. Other statuses but ok end the comparison, a failure while timing excepted: there the outputs were right, and
# the device too hot or its profiler at fault.
LOST = ("crashed", "timeout")

Pair = tuple[PairRecord, PairRecord]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its name, "A" or "B", how its cells are run, and the commit that its kernels are from, if any.
    `run.folder` is where its workers' logs go."""

    name: str
    run: Run
    commit: str | None = None


@dataclass
class Match:
    """Two cells that are compared, and the records of the pairs so far: one of each side for each pair. Where a side was
    not ok, `ended_by` in both of a pair's records names it, and `lost` says that it cost this pair alone."""

    cells: tuple[Cell, Cell]
    pairs: dict[int, Pair] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return " | ".join(cell.id for cell in self.cells)

    @property
    def made(self) -> list[Pair]:
        """The pairs in which both sides were right and timed."""
        return [pair for pair in self.pairs.values() if not pair[0].ended_by]

    @property
    def bad(self) -> list[PairRecord]:
        """The records of the sides that ended a pair."""
        return [r for pair in self.pairs.values() for r in pair if r.ended_by == r.side]

    @property
    def lost(self) -> int:
        """Pairs in which a side crashed, did not answer, or could not be timed."""
        return sum(r.lost for r in self.bad)

    @property
    def end(self) -> PairRecord | None:
        """The record that ends the comparison: of a side that is not right, or that is lost more often than not."""
        if final := next((r for r in self.bad if not r.lost), None):
            return final
        return self.bad[-1] if self.lost >= 2 and self.lost > len(self.made) else None


def run_pairs(
    sides: tuple[Side, Side], matches: Sequence[Match], pairs: int, rounds: int, folder: Path, file: str = store.FILE
) -> Iterator[Match]:
    """Runs the pairs that the matches lack; yields a match each time it has one more, which is then on disk, in that file.

    The matches of one pair share its processes. Raises StorageError where the disk takes no more.
    """
    a = sides[0].run
    with (
        scratch(folder) as files,
        # where the reference on the device is: it outlives the pairs, and is idle while they are timed
        Pool(a.settings.device, a.roots, folder, a.settings.threads) as judges,
    ):
        data = _Inputs(files)
        for side in sides:
            side.run.folder.mkdir(exist_ok=True)
        for number in range(pairs):
            todo = [m for m in matches if number not in m.pairs and not m.end]
            if not todo:
                continue
            with contextlib.ExitStack() as stack:
                pools = [stack.enter_context(_pool(side.run, judges)) for side in sides]
                wanted = [
                    (pool, key)
                    for place, pool in enumerate(pools)
                    for key in sorted(worker_keys(sides[place].run, [m.cells[place] for m in todo]))
                ]
                start_workers(a.clock, wanted)
                for match in todo:
                    pair = _one_pair(sides, pools, judges, match, number, rounds, data)
                    for record in pair:
                        store.append(folder, record, file)
                    match.pairs[number] = pair
                    for pool in pools:
                        if match is todo[-1]:  # both before either is waited for
                            pool.stop()
                        elif pair[0].ended_by:
                            for key, worker in list(pool.workers.items()):
                                release(pool, key, worker, a.settings.timeout_s)
                    yield match


def add_recorded(folder: Path, matches: Sequence[Match], file: str = store.FILE) -> None:
    """Gives the matches the pairs that are on record in the file of that name."""
    pairs: dict[tuple[str, int], dict[str, PairRecord]] = {}
    for record in store.read(folder, PairRecord, file):
        pairs.setdefault((record.comparison, record.pair), {})[record.side] = record
    for match in matches:
        found = {number: (p["A"], p["B"]) for (name, number), p in pairs.items() if name == match.id and len(p) == 2}
        match.pairs.update(found)


def _pool(run: Run, judges: Pool) -> Pool:
    """The workers of a side, on the same cores as the other side's."""
    return Pool(run.settings.device, run.roots, run.folder, beside=judges, timed=True)


class _Inputs:
    """The input sets and judges of both sides, kept from pair to pair; cells of one case and one kernel.py share them."""

    def __init__(self, files: Path):
        self.files = files
        self.known: dict[tuple[object, ...], CaseData] = {}

    def of(self, run: Run, cell: Cell) -> CaseData:
        mathematics = run.kernels[cell.case.kernel].mathematics
        key = (id(mathematics), cell.case.kernel, cell.case.id, cell.seed, cell.inputs)
        if key not in self.known:
            folder = Path(tempfile.mkdtemp(dir=self.files))
            self.known[key] = CaseData(mathematics, cell, folder, run.settings, run.clock)
        return self.known[key]

    def differ(self, sides: Sequence[Side], cells: Sequence[Cell]) -> str:
        """Why the sides' inputs of one case are not the same, or "": the kernel.py of two revisions may make others. Sides that
        ask for other cases, seeds or kinds of inputs are meant to have others."""
        a, b = (self.of(side.run, cell) for side, cell in zip(sides, cells, strict=True))
        if a is b or len({(cell.case.id, cell.seed, cell.inputs) for cell in cells}) > 1:
            return ""
        same = a.names == b.names and all(
            x[name].dtype == y[name].dtype and np.array_equal(_bits(x[name]), _bits(y[name]))
            for x, y in zip(a.sets, b.sets, strict=True)
            for name in a.names
        )
        return "" if same else "kernel.py of the two revisions makes different inputs: not the same work"


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


@dataclass
class _Attempt:
    """One side of a pair in hand: its cell's life, and the times of its turns."""

    side: Side
    trial: Trial
    turns: list[Timing] = field(default_factory=list)

    def record(self, match: Match, number: int) -> PairRecord:
        return PairRecord(self.trial.record, match.id, self.side.name, number, tuple(self.turns))


def _one_pair(
    sides: Sequence[Side], pools: Sequence[Pool], judges: Pool, match: Match, number: int, rounds: int, data: _Inputs
) -> Pair:
    """The two records of one pair; a side that is not ok ends it, and has its reason.

    Until a pair is made, it has the first, a later and a timed output judged, then the first one alone. Which side begins alternates.
    """
    order = [number % 2, 1 - number % 2]
    attempts = [_Attempt(s, Trial(s.run, cell, s.commit)) for s, cell in zip(sides, match.cells, strict=True)]
    for attempt in attempts:
        attempt.trial.name_source()  # also of a side that the other one's end keeps from beginning

    def ended(place: int, lost: Sequence[str] = LOST) -> Pair:
        return _ended((attempts[0].record(match, number), attempts[1].record(match, number)), place, lost)

    for place in order:
        run, cell, trial = sides[place].run, match.cells[place], attempts[place].trial
        with trial.recording_failures(pools[place]):
            if trial.can_run() and (refusal := _refusal(sides, match, place, trial, data)):
                trial.end(*refusal)
            elif trial.ok:
                trial.begin(pools[place].get(*trial.worker_key), judges, data.of(run, cell))
                if trial.build() and not match.made:
                    trial.repeat()
        if not trial.ok:
            return ended(place)
    for turn in range(-1, rounds):
        for place in order if _in_order(turn) else reversed(order):
            trial, timing = attempts[place].trial, None
            with trial.recording_failures(pools[place]):
                timing = trial.time(judged=not match.made and turn == rounds - 1)
            if timing is None:
                return ended(place, (*LOST, "failed"))
            if turn >= 0:  # the one before the first warms the process up
                attempts[place].turns.append(timing)
    for place, attempt in enumerate(attempts):
        for timing in attempt.turns:
            timed = rated(with_timing(attempt.trial.record, timing), None)
            if timed.status != "ok":  # a time that no such device can reach, or clocks that contradict each other
                attempt.trial.end(timed.status, str(timed.reason))
                return ended(place, (*LOST, "implausible") if doubted(timing) else LOST)
    for place in order:
        trial = attempts[place].trial
        with trial.recording_failures(pools[place]):
            trial.let_go(pools[place])
        if not trial.ok:
            return ended(place)
    return attempts[0].record(match, number), attempts[1].record(match, number)


def _refusal(sides: Sequence[Side], match: Match, place: int, trial: Trial, data: _Inputs) -> tuple[str, str] | None:
    """Status and reason of a side that can run but not be compared."""
    if trial.interpreted:
        return "skipped", f"{trial.implementation.without_gpu} on the CPU: never timed"
    if reason := data.differ(sides, match.cells):
        return "skipped", reason
    for pair in match.pairs.values():  # every pair imports the files anew
        if name := provenance.changed(pair[place].record.source, trial.implementation.file, trial.run.roots):
            return "failed", f"{name}, of which {trial.cell.label} is made, was changed between the pairs"
    return None


def _ended(pair: Pair, place: int, lost: Sequence[str]) -> Pair:
    """The pair without times, with the side that ended it, and whether that costs this pair alone."""
    bad, other = pair[place], pair[1 - place]
    reason = f"side {bad.side} {bad.record.status}: {bad.record.reason}"
    other = replace(other, record=replace(other.record, status="skipped", reason=reason))
    both = [replace(r, ended_by=bad.side, lost=bad.record.status in lost, turns=()) for r in (bad, other)]
    return (both[0], both[1]) if place == 0 else (both[1], both[0])


def _in_order(turn: int) -> bool:
    """A B, B A, B A, A B, …: the Thue-Morse sequence, in which a drift, also one that bends, falls on both sides alike."""
    return turn.bit_count() % 2 == 0
