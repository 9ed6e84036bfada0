"""What cells compute on the inputs of their case, kept beside what the judge says of each output."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebench import inputs
from fusebench.case_data import CaseData
from fusebench.cell import Trial
from fusebench.contract import Cell
from fusebench.folder import scratch, temporary
from fusebench.parity.verdict import Verdict
from fusebench.records.record import Record
from fusebench.settings import Run
from fusebench.workers.pool import InlinePool, Pool


@dataclass(frozen=True)
class Own:
    """An output against float64: its largest error, the largest error ÷ budget, and how many elements had a reference."""

    error: float
    ratio: float
    checked: int


@dataclass(frozen=True)
class Outputs:
    """A cell's record, its outputs on the first input set, each one against float64, and the names of those that have one; none where
    it did not run."""

    record: Record
    arrays: Sequence[np.ndarray] = ()
    own: Sequence[Own] = ()
    names: Sequence[str] = ()


@dataclass
class Runner:
    """Runs cells of one tree of kernels, those of one case on the same inputs."""

    run: Run
    pool: Pool | InlinePool
    files: Path
    commit: str | None = None
    known: dict[tuple[object, ...], _Kept] = field(default_factory=dict)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def outputs(self, cell: Cell) -> Outputs:
        """Builds and judges the cell as every command does, and keeps its first outputs."""
        shared, trial = self._shared(cell), Trial(self.run, cell, self.commit)
        shared.arrays, shared.verdicts = [], []
        with trial.recording_failures(self.pool):
            if trial.can_run():
                with self.run.clock.during("start_up"):
                    worker = self.pool.get(*trial.worker_key)
                trial.begin(worker, self.pool, shared)
                trial.build()
                trial.let_go(self.pool)
        own = [Own(v.max_abs, v.ratio, v.checked) for v in shared.verdicts]
        if len(own) == 1 and (first := trial.record.parity.first):  # on a large case it has seen more rows
            own = [replace(own[0], error=max(own[0].error, first.max_abs), ratio=first.ratio, checked=first.checked)]
        return Outputs(trial.record, shared.arrays, own, shared.outputs)

    def _shared(self, cell: Cell) -> _Kept:
        key = (cell.case.kernel, cell.case.id, cell.seed, cell.inputs)
        if key not in self.known:
            self.stack.close()  # the files of one case at a time
            self.known.clear()
            folder = self.stack.enter_context(temporary(self.files))
            mathematics = self.run.kernels[cell.case.kernel].mathematics
            self.known[key] = _Kept(mathematics, cell, folder, self.run.settings, self.run.clock)
        return self.known[key]


@contextlib.contextmanager
def runner(run: Run, pool: Pool | InlinePool, commit: str | None = None) -> Iterator[Runner]:
    """A runner whose files are gone when the context is left."""
    with scratch(run.folder) as files:
        found = Runner(run, pool, files, commit)
        with found.stack:
            yield found


class _Kept(CaseData):
    """The data of a case, which keeps the outputs that it last judged and the verdict on each."""

    arrays: Sequence[np.ndarray] = ()
    verdicts: Sequence[Verdict] = ()
    outputs: Sequence[str] = ()

    def judge(
        self, outputs: Sequence[inputs.Stored], points: Sequence[str], part: str, set_: int, pool: Any
    ) -> Verdict:
        """As CaseData's, of the first input set with what it is to keep."""
        arrays = inputs.load(outputs, self.folder)
        verdict = super().judge(outputs, points, part, set_, pool)
        if not verdict.problem:
            judge = self._judge(set_, part)
            self.arrays, self.verdicts, self.outputs = arrays, judge.each(arrays, points), judge.mathematics.outputs
        return verdict
