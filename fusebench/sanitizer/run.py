"""A sweep of cells under compute-sanitizer's tools: a process for each cell and tool, several side by side, each with its own limit of
time. A check is on disk before the next one ends."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from fusebench.cases import command
from fusebench.cell import Trial
from fusebench.configuration import request
from fusebench.configuration.request import Request
from fusebench.contract import Cell
from fusebench.errors import StorageError, UsageError
from fusebench.folder import scratch
from fusebench.records import store
from fusebench.records.record import Record
from fusebench.sanitizer import log, own
from fusebench.sanitizer.check import Check, check_id, concluded
from fusebench.sanitizer.tool import Sanitizer, variables
from fusebench.settings import Run
from fusebench.workers import below
from fusebench.workers.answers import FULL_BYTES
from fusebench.workers.pool import LOG_BYTES, has_ended

POLL_S = 0.02
LOGS = "logs"
Pair = tuple[int, Cell, str]  # the number of a cell in the request, the cell, the tool


@dataclass
class Sweep:
    """What all checks share: the run in hand, the request it follows from, the tool, and how many processes work side by side.
    `on_begin` hears which check begins."""

    this: Run
    asked: Request
    sanitizer: Sanitizer
    jobs: int
    on_begin: Callable[[Cell, str], None] = lambda cell, tool: None
    known: dict[Path, own.Own] = field(default_factory=dict)  # by file

    def own(self, cell: Cell) -> own.Own:
        """What is the implementation's of that cell."""
        implementation = self.this.kernels[cell.case.kernel].implementations[cell.implementation]
        if implementation.file not in self.known:
            self.known[implementation.file] = own.of(implementation, self.this.roots)
        return self.known[implementation.file]

    @property
    def cores(self) -> list[int]:
        """As many cores as each process has to itself."""
        ours = sorted(os.sched_getaffinity(0))
        return ours[: self.this.settings.threads or max(1, len(ours) // self.jobs)]


@dataclass
class Running:
    """A check whose process runs: its files, and when it is given up."""

    check: Check
    process: subprocess.Popen[bytes]
    folder: Path
    output: IO[bytes]
    deadline: float


def pairs(cells: Sequence[Cell], tools: Sequence[str]) -> list[Pair]:
    """The checks of a run, tool by tool: what the first says of a cell that cannot run here spares the others."""
    return [(number, cell, tool) for tool in tools for number, cell in enumerate(cells)]


def run(sweep: Sweep, waiting: Sequence[Pair]) -> Generator[Check, None, None]:
    """Yields each check once it is on disk. Raises StorageError where the disk takes no more. However it is left, no process stays."""
    left, running = deque(waiting), dict[int, Running]()
    skipped: dict[str, Record] = {}
    with scratch(sweep.this.folder) as files:
        try:
            while left or running:
                done = []
                if (
                    left
                    and len(running) < sweep.jobs
                    and (check := _begin(sweep, left.popleft(), running, files, skipped))
                ):
                    done.append(check)
                done += [_end(sweep, running.pop(place)) for place in [p for p, one in running.items() if _over(one)]]
                for check in done:
                    if check.status == "skipped":
                        skipped[check.cell.id] = check.record
                    store.append(sweep.this.folder, check)
                    yield check
                if not done and running and (len(running) == sweep.jobs or not left):
                    time.sleep(POLL_S)
        finally:
            for one in running.values():
                below.kill(one.process)
                one.output.close()


def _begin(
    sweep: Sweep, pair: Pair, running: dict[int, Running], files: Path, skipped: Mapping[str, Record]
) -> Check | None:
    """Starts a check, in a place that is free. Returns it if it is over already, because its cell cannot run here."""
    number, cell, tool = pair
    trial = Trial(sweep.this, cell)
    check = Check(check_id(cell, tool), tool, trial.record, sanitizer=sweep.sanitizer.version)
    if cell.id in skipped:
        return replace(check, record=skipped[cell.id])
    with trial.recording_failures(None):
        trial.can_run()
    if not trial.ok:
        return replace(check, record=trial.record)
    sweep.on_begin(cell, tool)
    check = replace(check, log=f"{LOGS}/{number + 1:04}-{tool}.log", record=trial.record)
    place = next(n for n in range(sweep.jobs) if n not in running)
    running[place] = _start(sweep, check, place, files, trial.worker_key[1])
    return None


def _start(sweep: Sweep, check: Check, place: int, files: Path, python: str) -> Running:
    """Raises StorageError."""
    settings = sweep.this.settings
    kept = sweep.this.folder / check.log
    chosen = {**sweep.asked.chosen, "device": settings.device, "rows_seed": settings.rows_seed}
    asked = replace(sweep.asked, cells=(check.cell,), chosen=chosen)
    folder = files / check.log.replace("/", "-").removesuffix(".log")
    try:
        kept.parent.mkdir(exist_ok=True)
        kept.unlink(missing_ok=True)
        folder.mkdir()
        (folder / "request.json").write_bytes(request.encode(asked))
        kept.with_suffix(".out").unlink(missing_ok=True)
        output = kept.with_suffix(".out").open("ab")
    except OSError as error:
        raise StorageError(str(error)) from error
    program = [python, "-Pm", "fusebench.sanitizer.cell", str(folder / "request.json"), str(folder), str(os.getpid())]
    line = sweep.sanitizer.command(check.tool, sweep.own(check.cell), kept.resolve(), place, len(sweep.cores), program)
    process = subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        env=variables(python, sweep.cores),
    )  # fmt: skip
    return Running(check, process, folder, output, time.monotonic() + settings.timeout_s)


def _over(one: Running) -> bool:
    """Whether it has ended, or is to be given up. One that prints for ever must not fill the disk meanwhile."""
    if os.fstat(one.output.fileno()).st_size > LOG_BYTES:
        os.truncate(one.output.name, LOG_BYTES // 2)
    return has_ended(one.process) or time.monotonic() >= one.deadline


def _end(sweep: Sweep, one: Running) -> Check:
    """The check of a process that has ended or is given up now. Raises StorageError where the disk was full."""
    ended = has_ended(one.process)
    below.kill(one.process)
    one.output.close()
    code = one.process.returncode if ended else None
    check, settings = one.check, sweep.this.settings
    kept = sweep.this.folder / check.log
    try:
        (record,) = store.read(one.folder, Record)
        trouble = ""
    except (ValueError, UsageError):  # none, or not all of it
        record, trouble = check.record, _why(code, kept.with_suffix(".out"))
        if shutil.disk_usage(sweep.this.folder).free < FULL_BYTES:
            raise StorageError(f"{check.id}: {os.strerror(28)}") from None
    text = kept.read_text("utf-8", "replace") if kept.exists() else ""
    check = concluded(replace(check, record=record), log.parse(text), sweep.own(check.cell), trouble)
    if not ended:
        reason = f"no end within {settings.timeout_s:g} s under {check.tool} (timeout_s sets the limit)"
        check = replace(check, record=replace(check.record, status="timeout", reason=reason))
    if check.passed and not check.findings and not check.notes:
        for file in (kept, kept.with_suffix(".out")):
            file.unlink(missing_ok=True)
        check = replace(check, log="")
    shutil.rmtree(one.folder, ignore_errors=True)
    again = "" if check.passed else _again(sweep, check)
    record = replace(check.record, began=one.check.record.began, ended=datetime.now(UTC).isoformat(), reproduce=again)
    return replace(check, record=record)


def _why(code: int | None, output: Path) -> str:
    """Why a program left no record, in the last line that it printed."""
    how = f"exit code {code}"
    if code is not None and code < 0:
        how = f"killed by {next((s.name for s in signal.Signals if s == -code), f'signal {-code}')}"
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - 2**16))
        lines = [said for line in file.read().decode(errors="replace").splitlines() if (said := line.strip(" ="))]
    return f"it ended without a record: {how}" + (f" ({lines[-1][:200]})" if lines else "")


def _again(sweep: Sweep, check: Check) -> str:
    """The command that runs the cell again, under all tools."""
    kernel, settings = sweep.this.kernels[check.cell.case.kernel], sweep.this.settings
    line = command(kernel, check.cell, settings.device, sweep.this.roots[1:], rows_seed=check.record.parity.rows_seed)
    given = sweep.asked.chosen["sanitizer"]
    named = f" {shlex.quote(f'sanitizer={given}')}" if given else ""
    return line.replace("fusebench parity", "fusebench sanitize", 1) + named
