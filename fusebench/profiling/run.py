"""A sweep of cells that are profiled: each is built and judged as in a run, traced in its worker, and, where ncu reads hardware
counters, run once more in a process of its own under it."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusebench.backends.events import KERNEL, Held
from fusebench.case_data import CaseData
from fusebench.cell import Trial
from fusebench.configuration import request
from fusebench.configuration.request import Request
from fusebench.contract import Cell
from fusebench.errors import StorageError
from fusebench.folder import scratch, temporary
from fusebench.profiling import counters, kernels
from fusebench.profiling.kernels import KernelTotal, Span
from fusebench.profiling.ncu import Ncu, NoCounters, why_none
from fusebench.records import store
from fusebench.records.record import SCHEMA, Record
from fusebench.run import start_workers, worker_keys
from fusebench.settings import Run
from fusebench.tracing.calls import Traced
from fusebench.tracing.syncs import Sync
from fusebench.workers import below, protocol
from fusebench.workers.pool import InlinePool, Pool, environment

REPORTS = "counters"  # the folder of ncu's reports in that of the run


@dataclass(frozen=True)
class Profile:
    """What the profile of one cell left behind. `spans` are of the traced calls, `span` and `rows` of call `shown`, whose span is the
    median; they are empty where a framework names no operators;
    `launched` names its kernels in the order in which they began. `syncs` and `memory` of calls of their own. `counters` are those of all kernels of a call together, and `no_counters` says why
    there are none; `counted_elsewhere` names kernels that ran under ncu alone; `report` is ncu's file in the run's folder."""

    id: str
    record: Record
    spans: tuple[Span, ...] = ()
    span: Span | None = None
    shown: int = 0
    rows: tuple[KernelTotal, ...] = ()
    launched: tuple[str, ...] = ()
    syncs: tuple[Sync, ...] = ()
    memory: tuple[Held, ...] = ()
    memory_of: str = ""
    peak_bytes: int | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    no_counters: str = ""
    counted_elsewhere: tuple[str, ...] = ()
    report: str = ""
    schema: int = SCHEMA

    @property
    def cell(self) -> Cell:
        return self.record.cell

    @property
    def dram_share(self) -> float | None:
        """Bytes to and from DRAM in a call ÷ the bytes that it must move; None without counters."""
        moved = self.record.work and self.record.work.moved_bytes
        return self.counters[counters.DRAM] / moved if moved and counters.DRAM in self.counters else None


@dataclass
class Sweep:
    """What all cells share: the run in hand, its request, how many calls are traced and whether they are queued, and the ncu, or why
    there is none. `on_begin` hears which step of which cell begins."""

    this: Run
    asked: Request
    calls: int
    queued: bool
    ncu: Ncu | NoCounters
    on_begin: Callable[[Cell, str], None] = lambda cell, step: None


def run(sweep: Sweep) -> Iterator[tuple[Profile, Traced]]:
    """Yields each cell's profile once it is on disk, with what was recorded of it. Raises StorageError where the disk takes no more."""
    this = sweep.this
    with scratch(this.folder) as files, _pool(this) as pool:
        traced_here = [cell for cell in sweep.asked.cells if not Trial(this, cell).interpreted]
        start_workers(this.clock, [(pool, key) for key in sorted(worker_keys(this, traced_here))])
        for _, group in itertools.groupby(sweep.asked.cells, key=lambda c: (c.case, c.seed, c.inputs)):
            cells = list(group)
            with temporary(files) as folder:
                mathematics = this.kernels[cells[0].case.kernel].mathematics
                shared = CaseData(mathematics, cells[0], folder, this.settings, this.clock)
                for cell in cells:
                    profile, traced = _profile(sweep, pool, cell, shared)
                    store.append(this.folder, profile)
                    yield profile, traced


def count(sweep: Sweep, profiles: Sequence[Profile]) -> Iterator[Profile]:
    """Yields those profiles that have rows again, with counters or with the reason why there are none, once they are on disk. No worker
    may run meanwhile: its profiler might hold the counters. Raises StorageError."""
    with scratch(sweep.this.folder) as files:
        for number, profile in enumerate((p for p in profiles if p.rows), 1):
            counted = _with_counters(sweep, profile, files, number)
            store.append(sweep.this.folder, counted)
            yield counted


def built(
    this: Run, pool: Pool | InlinePool, cell: Cell, shared: CaseData, then: Callable[[Trial], None], judged: bool = True
) -> Trial:  # fmt: skip
    """The trial of a cell that was built, and `judged`, if it can be; of one that is right `then` does the rest."""
    trial = Trial(this, cell)
    with trial.recording_failures(pool):
        if trial.can_run():
            if trial.interpreted:
                trial.end("skipped", f"{trial.implementation.without_gpu} on the CPU: its time is none of a GPU's")
                return trial
            with this.clock.during("start_up"):
                worker = pool.get(*trial.worker_key)
            trial.begin(worker, pool, shared)
            if trial.build(judged):
                then(trial)
            trial.let_go(pool)
    return trial


def ask(trial: Trial, message: protocol.TraceCell) -> Traced | None:
    """What the worker recorded of the cell in hand; None where it refused, which ends the cell."""
    reply = trial.worker.ask(message, protocol.Traced, trial.run.settings.timeout_s)
    if isinstance(reply, protocol.Refused):
        trial.end(reply.status, reply.reason, reply.traceback)
        trial.again = reply.again
        return None
    answered: Traced | None = reply.traced
    return answered


def name_of(cell: Cell) -> str:
    """How a cell's ranges are called: lola/large/bfloat16/torch_eager."""
    return cell.id.removesuffix(f"/seed={cell.seed}")


def _pool(this: Run) -> Pool | InlinePool:
    if this.settings.inline:
        return InlinePool(this.settings.device, this.roots, this.settings.threads)
    return Pool(this.settings.device, this.roots, this.folder, this.settings.threads, timed=True)


def _profile(sweep: Sweep, pool: Any, cell: Cell, shared: CaseData) -> tuple[Profile, Traced]:
    """The cell's profile without counters; once more in a fresh worker where the profiler lost records."""
    traced: Traced | None = None

    def trace(trial: Trial) -> None:
        nonlocal traced
        sweep.on_begin(cell, "tracing")
        traced = ask(trial, protocol.TraceCell(name_of(cell), sweep.calls, sweep.queued))

    sweep.on_begin(cell, "building")
    trial = built(sweep.this, pool, cell, shared, trace)
    if trial.again:
        pool.drop(*trial.worker_key)
        trial = built(sweep.this, pool, cell, shared, trace)
    if not trial.ok or traced is None:
        return Profile(cell.id, trial.record), Traced()
    sums = [kernels.summed(call, sweep.this.settings.device) for call in traced.calls]
    known = sorted(((n, *one) for n, one in enumerate(sums) if one), key=lambda one: one[1].span_s)
    profile = Profile(
        cell.id, trial.record, syncs=traced.syncs, memory=traced.memory, memory_of=traced.memory_of, peak_bytes=traced.peak_bytes
    )  # fmt: skip
    if known:
        shown, span, rows = known[(len(known) - 1) // 2]
        profile = replace(profile, spans=tuple(one[0] for one in sums if one), span=span, shown=shown, rows=tuple(rows))
        begun = sorted((e for e in traced.calls[shown].events if e.kind == KERNEL), key=lambda e: e.begin)
        profile = replace(profile, launched=tuple(e.name for e in begun))
    return profile, traced


def _with_counters(sweep: Sweep, profile: Profile, files: Path, number: int) -> Profile:
    """The profile with hardware counters, or with the reason why it has none."""
    if isinstance(sweep.ncu, NoCounters):
        return replace(profile, no_counters=str(sweep.ncu))
    sweep.on_begin(profile.cell, "counting")
    report = sweep.this.folder / REPORTS / f"{number:04}.ncu-rep"
    try:
        with contextlib.suppress(FileExistsError):
            report.parent.mkdir()
        counted = _count(sweep, sweep.ncu, profile, report, files)
    except NoCounters as none:
        if none.everywhere:
            sweep.ncu = none
        return replace(profile, no_counters=str(none))
    except OSError as error:
        raise StorageError(str(error)) from error
    return replace(
        profile, rows=tuple(counters.beside(profile.rows, counted, profile.launched)), counters=counters.together(counted),
        counted_elsewhere=counters.elsewhere(profile.rows, counted), report=str(report.relative_to(sweep.this.folder)),
    )  # fmt: skip


def _count(sweep: Sweep, ncu: Ncu, profile: Profile, report: Path, files: Path) -> list[counters.Counted]:
    """The counters of one call, made in a process under ncu. Raises NoCounters."""
    settings = sweep.this.settings
    chosen = {
        **sweep.asked.chosen,
        "device": settings.device,
        "rows_seed": settings.rows_seed,
        "calls": 1,
        "counters": False,
    }
    chosen["worker"] = {**chosen["worker"], "inline": True}
    with temporary(files) as folder:
        asked = replace(sweep.asked, cells=(profile.cell,), chosen=chosen)
        (folder / "request.json").write_bytes(request.encode(asked))
        python = Trial(sweep.this, profile.cell).worker_key[1]
        program = [
            python,
            "-Pm",
            "fusebench.profiling.cell",
            str(folder / "request.json"),
            str(folder),
            str(os.getpid()),
        ]
        cores = sorted(os.sched_getaffinity(0))[: settings.threads]
        output = report.with_suffix(".out")
        with output.open("wb") as printed:
            process = subprocess.Popen(
                ncu.command(report.resolve(), program), stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                start_new_session=True, env=environment("cuda", python, cores),
            )  # fmt: skip
            try:
                process.wait(settings.timeout_s)
            except subprocess.TimeoutExpired:
                raise NoCounters(
                    f"no end within {settings.timeout_s:g} s under ncu (timeout_s sets the limit)"
                ) from None
            finally:
                below.kill(process)
        records = store.read(folder, Record)
    said = output.read_text("utf-8", "replace")
    if not report.exists():
        failed = next((r.reason for r in records if r.status != "ok"), None)
        raise NoCounters(f"under ncu the cell is {records[0].status}: {failed}") if failed else why_none(said)
    found = counters.parse(ncu.listing(report))
    if not any(one.counters for one in found):
        raise why_none(said)
    output.unlink()
    return found
