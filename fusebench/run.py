"""A sweep of cells: each goes through its life (cell.py) with the others of its case, and its record is on disk before the next.

`bench`, `parity`, asv, the tests and the library are thin callers of `run`; there is no second path.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusebench.case_data import CaseData, reference_key
from fusebench.cell import Trial, run_cell
from fusebench.contract import Case, Cell
from fusebench.folder import scratch, temporary
from fusebench.hard_check import HardCheck
from fusebench.parity.view import oversize
from fusebench.records import store
from fusebench.records.record import Record
from fusebench.settings import Clock, Run
from fusebench.timing import yardstick, yardstick_cache
from fusebench.workers import yardsticks
from fusebench.workers.pool import InlinePool, Pool, WorkerLost, interpreter


def run(this: Run, cells: Sequence[Cell], pool: Pool | InlinePool | None = None) -> Iterator[Record]:
    """Runs the cells in order and yields each one's record once it is on disk.

    Cells of one case stand together. Whatever one cell does, the others get their records. A `pool` that is handed in stays
    open for the next run; without one, the workers end with this run. Raises StorageError where the disk takes no more.
    """
    with scratch(this.folder) as files, contextlib.nullcontext(pool) if pool else _pool(this) as workers:
        start_workers(this.clock, [(workers, key) for key in sorted(_wanted(this, cells))])
        check = HardCheck(this, workers, files)
        for _, group in itertools.groupby(cells, key=lambda c: (c.case, c.seed, c.inputs)):
            yield from _run_case(this, workers, list(group), files, check)


def _pool(this: Run) -> Pool | InlinePool:
    if this.settings.inline:
        return InlinePool(this.settings.device, this.roots, this.settings.threads)
    timed = this.settings.plan.time_s > 0
    return Pool(this.settings.device, this.roots, this.folder, this.settings.threads, timed=timed)


def _wanted(this: Run, cells: Sequence[Cell]) -> set[tuple[str, str]]:
    """The workers of the cells, the one for the yardsticks, and the reference of cases of which the judge does not see all."""
    can_run = _can_run(this, cells)
    wanted = {trial.worker_key for trial in can_run}
    if wanted and this.settings.plan.time_s:
        wanted.add(_torch(this))
    if any(map(_needs_reference, can_run)):
        wanted.add(reference_key(this.settings))
    return wanted


def worker_keys(this: Run, cells: Sequence[Cell]) -> set[tuple[str, str]]:
    """The workers of the cells that can run, by back end and interpreter."""
    return {trial.worker_key for trial in _can_run(this, cells)}


def _can_run(this: Run, cells: Sequence[Cell]) -> list[Trial]:
    return [trial for trial in (Trial(this, cell) for cell in cells) if _needs_worker(trial)]


def _needs_worker(trial: Trial) -> bool:
    try:
        return not (trial.implementation.broken or trial.skip_reason())
    except Exception:  # a kernel.py that raises: its cells will say so, one by one
        return False


def _needs_reference(trial: Trial) -> bool:
    try:
        return oversize(trial.kernel.mathematics, trial.cell.case) > 1
    except Exception:  # as above
        return False


def _torch(this: Run) -> tuple[str, str]:
    """The worker that measures yardsticks."""
    return "torch", interpreter(this.settings.pythons, "torch", "torch")


def _unused(pool: Any, key: tuple[str, str]) -> Any:
    """That worker, or a fresh one where it has loaded an implementation, which may have changed threads, flags or the clock."""
    worker = pool.get(*key)
    if worker.used:
        pool.drop(*key)
        worker = pool.get(*key)
    return worker


def start_workers(clock: Clock, wanted: Sequence[tuple[Any, tuple[str, str]]]) -> None:
    """Each in its pool; all at once, because importing a framework takes seconds, and all ready before anything is timed."""
    for take in ("start", "get"):
        for pool, key in wanted:
            with clock.during("start_up"), contextlib.suppress(WorkerLost):  # its cells will say so, one by one
                getattr(pool, take)(*key)


def _run_case(this: Run, pool: Any, cells: Sequence[Cell], files: Path, check: HardCheck) -> Iterator[Record]:
    """The cells of one case on the same inputs."""
    with temporary(files) as folder:
        shared = CaseData(this.kernels[cells[0].case.kernel].mathematics, cells[0], folder, this.settings, this.clock)
        for cell in cells:
            yield _run_one(this, pool, cell, shared, check)


def _run_one(this: Run, pool: Any, cell: Cell, shared: CaseData, check: HardCheck) -> Record:
    """The cell's record, once it is on disk."""
    trial = _attempt(this, pool, cell, shared, check)
    if trial.again:  # in another process, and once: its profiler may lose none, and its clocks agree
        first = trial.record.reason
        pool.drop(*trial.worker_key)
        trial = _attempt(this, pool, cell, shared, check)
        trial.record = replace(trial.record, retried=first)
    store.append(this.folder, trial.record)
    return trial.record


@contextlib.contextmanager
def one_case(this: Run, first: Cell, pool: Pool | InlinePool) -> Iterator[Callable[[Cell], Record]]:
    """Within it, a function that runs a cell of the same case, seed and kind of inputs as `first`, as `run` does: for who chooses the
    next cell by the records of those before. Raises StorageError where the disk takes no more."""
    with scratch(this.folder) as files, temporary(files) as folder:
        start_workers(this.clock, [(pool, key) for key in sorted(_wanted(this, [first]))])
        check = HardCheck(this, pool, files)
        shared = CaseData(this.kernels[first.case.kernel].mathematics, first, folder, this.settings, this.clock)
        yield lambda cell: _run_one(this, pool, cell, shared, check)


def ended(this: Run, cell: Cell, status: str, reason: str, traceback: str = "") -> Record:
    """The record, on disk, of a cell that came to its end before it could run. Raises StorageError where the disk takes no more."""
    trial = Trial(this, cell)
    with trial.recording_failures(None):
        trial.name_source()
        trial.end(status, reason, traceback)
    store.append(this.folder, trial.record)
    return trial.record


def _attempt(this: Run, pool: Any, cell: Cell, shared: CaseData, check: HardCheck) -> Trial:
    """The cell's life, whatever it does, and its record."""
    trial = Trial(this, cell)
    shared.own(this.folder / store.FILE, *this.folder.glob("*.yaml"))  # what a later run goes on with
    with trial.recording_failures(pool):
        if trial.can_run() and check.before(trial):
            rates = _rates(this, pool, cell.case, trial)
            with this.clock.during("start_up"):
                worker = pool.get(*trial.worker_key)
            trial.begin(worker, pool, shared)
            run_cell(trial, rates, check.built)
            trial.let_go(pool)
    if (files := shared.changed() + check.changed()) and trial.ok:
        trial.end("failed", f"{', '.join(files)} of the run was changed while it ran: no cell may write there")
    return trial


def _rates(this: Run, pool: Any, case: Case, trial: Trial) -> yardstick.Rates | None:
    """The yardsticks that the case needs, those that no earlier run left measured now; None for parity alone, without Torch, or
    where one of them cannot be measured."""
    if not this.settings.plan.time_s or trial.record.work is None:
        return None
    # FLOPs that are no product's do not go at a product's rate: such a kernel is held against the bandwidth
    flops = trial.record.work.flops or 0 if trial.kernel.mathematics.multiplies else 0
    names = yardstick.needed(case.dtype, case.precision, flops, this.settings.device)
    if missing := [name for name in names if name not in pool.rates]:
        lost = yardstick.Missing("the worker was lost")
        pool.rates |= dict.fromkeys(missing, lost)  # not tried again for every case
        with this.clock.during("timing"):
            try:
                key, found = yardsticks.find(_unused(pool, _torch(this)), missing, this.settings.timeout_s)
                pool.rates |= yardstick_cache.read(key) | found  # all that are known, so that no later case asks again
            except WorkerLost:
                pool.drop(*_torch(this))
    return yardstick.as_rates(pool.rates, names)
