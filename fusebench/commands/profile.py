"""The command `profile`: what the time and the memory of a call go to, for each of the chosen cells."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import cases, folder, report
from fusebench.commands import app
from fusebench.configuration import values
from fusebench.configuration.request import Request
from fusebench.contract import PASSED, Cell
from fusebench.discovery import Kernel
from fusebench.errors import StorageError, UsageError, unknown
from fusebench.profiling import memory, ncu, run, table, trace
from fusebench.profiling.ncu import Ncu, NoCounters
from fusebench.profiling.run import Profile
from fusebench.records import store
from fusebench.settings import Run
from fusebench.terminal import counted, while_it_is_read
from fusebench.tracing.calls import Traced

REGIMES = ("auto", "queued", "isolated")


def run_profile(arguments: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 if every cell is right and was profiled, or is skipped; 1 if not; 2 for bad input; 130
    interrupted."""
    return app.run_app("profile", arguments, _run, _code_of, _complete)


def _complete(chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Mapping[str, Any]:
    """The configuration with its own keys checked. Raises UsageError."""
    if chosen["regime"] not in REGIMES:
        raise unknown("regime", chosen["regime"], REGIMES)
    device = values.resolve_device(chosen["device"])
    if chosen["regime"] == "queued" and device == "cpu":
        raise UsageError("regime=queued: a CPU has no stream to queue in; regime=isolated works there")
    if chosen["ncu"] is not None and chosen["counters"]:
        _find_ncu(chosen, device)
    return {**chosen, "calls": cases.positive("calls", chosen["calls"])}


def _find_ncu(chosen: Mapping[str, Any], device: str) -> Ncu | NoCounters:
    """The ncu that reads counters, or why none does. Raises UsageError where a path was given at which there is none."""
    if not chosen["counters"]:
        return NoCounters("", True)  # they are not asked for
    if device == "cpu":
        return NoCounters("a CPU has none that ncu reads", True)
    try:
        return ncu.find(chosen["ncu"])
    except NoCounters as none:
        return none


def _run(asked: Request, run_folder: Path, kernels: Mapping[str, Kernel], resumed: bool) -> int:
    """One job, in its folder. Raises UsageError before anything has run, and StorageError when the disk takes no more."""
    begin = time.perf_counter()
    settings = values.settings(asked.chosen)
    found = _find_ncu(asked.chosen, settings.device)
    queued = settings.device == "cuda" and asked.chosen["regime"] != "isolated"
    with folder.held(run_folder):
        folder.keep({**asked.chosen, "device": settings.device}, run_folder, asked.command)
        this = Run(kernels, [Path(root) for root in asked.roots], run_folder, settings)
        sweep = run.Sweep(this, asked, asked.chosen["calls"], queued, found)
        profiles: dict[str, Profile] = {}
        traced: dict[str, Traced] = {}
        interrupted = not _profile(sweep, profiles, traced)
        recorded = [(run.name_of(p.cell), traced[p.id]) for p in profiles.values() if traced[p.id].calls]
        trace.write(recorded, run_folder / trace.FILE)
        drawn = _draw(recorded, run_folder)
    with while_it_is_read():
        if not asked.chosen.get("quiet", False):
            table.show(list(profiles.values()), settings.device)
        none = [p.no_counters for p in profiles.values() if p.no_counters]
        table.footer(list(profiles.values()), none, time.perf_counter() - begin, run_folder, drawn)
    return app.INTERRUPTED if interrupted else _code_of(run_folder)


def _draw(recorded: Sequence[tuple[str, Traced]], run_folder: Path) -> str:
    """What there is to say of the picture of the memory: where it is, why there is none, "" where there was nothing to draw."""
    try:
        drawn = memory.draw([(name, t.memory) for name, t in recorded], run_folder / memory.FILE)
    except ImportError:
        return f"no {memory.FILE}: it needs matplotlib, or the extra plot of fusebench"
    return f"memory: {run_folder / memory.FILE}" if drawn else ""


def _profile(sweep: run.Sweep, profiles: dict[str, Profile], traced: dict[str, Traced]) -> bool:
    """Adds the profiles; False if it was interrupted: what is done by then stays. Raises StorageError."""
    cells, quiet = sweep.asked.cells, sweep.asked.chosen.get("quiet", False)
    with_counters = isinstance(sweep.ncu, Ncu)
    with report.progress(quiet) as bar:
        task = bar.add_task("starting", total=len(cells) * (1 + with_counters))

        def on_begin(cell: Cell, step: str) -> None:
            bar.update(task, description=f"{cell.label} {cell.case.id}: {step}")

        sweep.on_begin = on_begin
        try:
            for profile, recorded in run.run(sweep):
                profiles[profile.id], traced[profile.id] = profile, recorded
                bar.advance(task)
                if sweep.asked.chosen.get("verbose"):
                    said = f"{profile.record.status}  {profile.cell.label} {profile.cell.case.id}"
                    print(f"[{len(profiles)}/{len(cells)}] {said}", file=sys.stderr, flush=True)
            for profile in run.count(sweep, list(profiles.values())):
                profiles[profile.id] = profile
                bar.advance(task)
        except KeyboardInterrupt:
            bar.stop()
            app.interrupted(
                f"interrupted: {len(profiles)} of {counted(len(cells), 'cell')} kept in {sweep.this.folder}"
            )
            return False
        except StorageError as error:
            bar.stop()
            raise StorageError(f"{error}; {len(profiles)} of {counted(len(cells), 'cell')} kept") from error
    return True


def _code_of(run_folder: Path) -> int:
    """0 if every cell in the folder is ok or skipped, else 1."""
    return 0 if all(p.record.status in PASSED for p in store.latest(run_folder, Profile)) else 1
