"""The processes of a comparison: pairs of them, one of each side, alive side by side and working in turns.

A pair builds both cells, has their outputs judged by the same judge as every run (run.py), and times them in rounds. Every
pair leaves a line for each side in records.jsonl as it ends.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusebench import records
from fusebench.contract import Cell
from fusebench.folder import scratch
from fusebench.parity.case_data import CaseData
from fusebench.run import (
    Run,
    Trial,
    add_rates,
    at_its_own_cost,
    home_of,
    homes,
    interpreted,
    new_record,
    possible,
    release,
    start_workers,
)
from fusebench.workers.pool import Pool

LOST = (
    "crashed",
    "timeout",
)  # what costs a pair; other statuses but ok end the comparison, a failure while timing excepted:
#                                there the outputs were right, and the device too hot or its profiler at fault


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
    pairs: dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return " | ".join(cell.id for cell in self.cells)

    @property
    def made(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """The pairs in which both sides were right and timed."""
        return [pair for pair in self.pairs.values() if not pair[0]["ended_by"]]

    @property
    def bad(self) -> list[Mapping[str, Any]]:
        """The records of the sides that ended a pair."""
        return [r for pair in self.pairs.values() for r in pair if r["ended_by"] == r["side"]]

    @property
    def lost(self) -> int:
        """Pairs in which a side crashed, did not answer, or could not be timed."""
        return sum(r["lost"] for r in self.bad)

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The record that ends the comparison: of a side that is not right, or that is lost more often than not."""
        if final := next((r for r in self.bad if not r["lost"]), None):
            return final
        return self.bad[-1] if self.lost >= 2 and self.lost > len(self.made) else None


def run_pairs(
    sides: tuple[Side, Side], matches: Sequence[Match], pairs: int, rounds: int, folder: Path
) -> Iterator[Match]:
    """Runs the pairs that the matches lack; yields a match each time it has one more, which is then on disk.

    The matches of one pair share its processes. Raises Unstored where the disk takes no more.
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
                pools = [stack.enter_context(_pool(side.run)) for side in sides]
                wanted = [
                    (pool, home)
                    for place, pool in enumerate(pools)
                    for home in sorted(homes(sides[place].run, [m.cells[place] for m in todo]))
                ]
                start_workers(a.clock, wanted)
                for match in todo:
                    pair = _one_pair(sides, pools, judges, match, number, rounds, data)
                    for record in pair:
                        records.append(folder, record)
                    match.pairs[number] = pair
                    for pool in pools:
                        if match is todo[-1]:  # both before either is waited for
                            pool.stop()
                        else:
                            for home, worker in list(pool.workers.items()):
                                release(pool, home, worker, a.settings.timeout_s)
                    yield match


def _pool(run: Run) -> Pool:
    return Pool(run.settings.device, run.roots, run.folder, run.settings.threads)


class _Inputs:
    """The input sets and judges of both sides, kept from pair to pair; cells of one case and one kernel.py share them."""

    def __init__(self, files: Path):
        self.files = files
        self.known: dict[tuple[Any, ...], CaseData] = {}

    def of(self, run: Run, cell: Cell) -> CaseData:
        module = run.kernels[cell.case.kernel].module
        key = (id(module), cell.case.kernel, cell.case.id, cell.seed, cell.inputs)
        if key not in self.known:
            folder = Path(tempfile.mkdtemp(dir=self.files))
            self.known[key] = CaseData(module, cell, folder, run.settings, run.clock)
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


def _one_pair(
    sides: Sequence[Side], pools: Sequence[Pool], judges: Pool, match: Match, number: int, rounds: int, data: _Inputs
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two records of one pair; a side that is not ok ends it, and has its reason.

    The first pair has the first, a later and a timed output judged, the others the first one. Which side begins alternates.
    """
    order = [number % 2, 1 - number % 2]
    pair = _new(sides[0], match, number), _new(sides[1], match, number)
    trials: dict[int, Trial] = {}
    for place in order:
        run, cell, record = sides[place].run, match.cells[place], pair[place]
        with at_its_own_cost(run, pools[place], cell, record):
            if possible(run, cell, record) and (reason := _refusal(sides, match, place, record, data)):
                record.update(reason)
            elif record["status"] == "ok":
                worker = pools[place].get(*home_of(run, cell))
                trials[place] = Trial(run, judges, worker, cell, record, data.of(run, cell))
                if trials[place].build() and number == 0:
                    trials[place].again()
        if record["status"] != "ok":
            return _ended(pair, place)
    for turn in range(-1, rounds):
        for place in order if _in_order(turn) else reversed(order):
            run, cell, record = sides[place].run, match.cells[place], pair[place]
            with at_its_own_cost(run, pools[place], cell, record):
                trials[place].time(judged=number == 0 and turn == rounds - 1)
            timing = record.pop("timing", None)
            if record["status"] != "ok":
                return _ended(pair, place, (*LOST, "failed"))
            if turn >= 0:  # the one before the first warms the process up
                record["turns"].append(timing)
    for place, record in enumerate(pair):
        for turn in record["turns"]:
            timed = record | {"timing": turn}
            add_rates(timed, {})
            if timed["status"] != "ok":  # a time that no such device can reach, or clocks that contradict each other
                record.update(status=timed["status"], reason=timed["reason"])
                return _ended(pair, place)
    return pair


def _new(side: Side, match: Match, number: int) -> dict[str, Any]:
    record = new_record(side.run, match.cells["AB".index(side.name)])
    if side.commit and record["source"]:
        record["source"]["git_commit"] = side.commit
    return record | {
        "comparison": match.id,
        "side": side.name,
        "pair": number,
        "ended_by": None,
        "lost": False,
        "turns": [],
    }


def digests(source: Mapping[str, Any] | None) -> list[str | None]:
    """Of the implementation's file and of what it shares with others, by its record's `source`; None where it was gone."""
    return [(source or {}).get(key) for key in ("sha256", "shared_sha256")]


def _refusal(
    sides: Sequence[Side], match: Match, place: int, record: Mapping[str, Any], data: _Inputs
) -> dict[str, str] | None:
    """Status and reason of a side that can run but not be compared."""
    if interpreted(sides[place].run, match.cells[place]):
        return {"status": "skipped", "reason": "interpreted on the CPU: never timed"}
    if reason := data.differ(sides, match.cells):
        return {"status": "skipped", "reason": reason}
    # every pair imports the files anew
    if any(digests(pair[place]["source"]) != digests(record["source"]) for pair in match.pairs.values()):
        return {
            "status": "failed",
            "reason": f"the file of {record['label']}, or one that it shares, was changed between the pairs",
        }
    return None


def _ended(
    pair: tuple[dict[str, Any], dict[str, Any]], place: int, lost: Sequence[str] = LOST
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pair without times, with the side that ended it, and whether that costs this pair alone."""
    bad, other = pair[place], pair[1 - place]
    other.update(status="skipped", reason=f"side {bad['side']} {bad['status']}: {bad['reason']}")
    for record in pair:
        record.update(ended_by=bad["side"], lost=bad["status"] in lost, turns=[])
    return pair


def _in_order(turn: int) -> bool:
    """A B, B A, B A, A B, …: the Thue-Morse sequence, in which a drift, also one that bends, falls on both sides alike."""
    return turn.bit_count() % 2 == 0
