"""The command `tune`: searches the tunables of implementations, confirms what is fastest, and keeps it for later runs."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusebench import cases, folder, report
from fusebench.commands import app, show
from fusebench.configuration import values
from fusebench.configuration.request import Request
from fusebench.contract import Cell, Device
from fusebench.discovery import Kernel
from fusebench.errors import StorageError, UsageError
from fusebench.inspection import targets
from fusebench.records import store
from fusebench.records.record import Record
from fusebench.records.store import FILE
from fusebench.settings import Run
from fusebench.terminal import console, while_it_is_read
from fusebench.timing.summary import seconds as text_of
from fusebench.tuning import ahead, confirm, results, strategies, study
from fusebench.tuning.confirm import Decision
from fusebench.tuning.study import Found, Search
from fusebench.workers.pool import Pool

ELSEWHERE = Device("cuda", "sm_90", (9, 0), 132)  # what a dry run without a GPU prunes for


def run_tune(arguments: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 if every study has a config with a time, or was skipped; 1 if not; 2 for bad input, or where
    nothing can be tuned here; 130 interrupted."""
    return app.run_app("tune", arguments, _run, _code_of, _complete, _show_dry)


def _complete(chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Mapping[str, Any]:
    """The configuration, checked, with the implementations that have tunables where none are named. Raises UsageError."""
    if chosen["kernel"] is None:
        raise UsageError(
            "tune needs kernel=, such as kernel=lola; with implementation= and dtype= it says what is tuned"
        )
    if chosen["worker"]["inline"]:
        raise UsageError("worker=inline: a config may crash or hang, so each runs in a process; worker=process")
    cases.check_name("strategy", str(chosen["strategy"]), strategies.NAMES)
    if chosen["strategy"] == "optuna":
        strategies.load_optuna()
    if chosen["trials"] is not None:
        cases.positive("trials", chosen["trials"])
    cases.positive("pairs", chosen["pairs"])
    cases.positive("rounds", chosen["rounds"])
    cases.positive("search_seed", chosen["search_seed"], least=0)
    if chosen["jobs"] is not None:
        cases.positive("jobs", chosen["jobs"], least=0)
    _target(chosen)
    results.check_heatmap(chosen["heatmap"])
    if chosen["out"] is not None and Path(chosen["out"]).suffix not in (".csv", ".json", ".parquet"):
        raise UsageError(f"out={chosen['out']}: expected a file that ends in .csv, .json or .parquet")
    if chosen["implementation"] is not None:
        return chosen
    asked = [kernels[k] for k in cases.chosen("kernel", chosen["kernel"], kernels)]
    own = dict.fromkeys(
        f"{name}:{variant}" for k in asked for name, i in k.implementations.items() for variant in i.tunables
    )
    if not own:
        raise UsageError(f"no implementation of {', '.join(k.name for k in asked)} has TUNABLES: nothing to tune")
    return {**chosen, "implementation": list(own)}


def _target(chosen: Mapping[str, Any]) -> ahead.Target | None:
    """What `arch` names, for which configs are compiled and not run. Raises UsageError for a name that none has."""
    if chosen["arch"] is None:
        return None
    found = targets.target(str(chosen["arch"]))
    return ahead.Target(found.device, found.arch)


def _jobs(chosen: Mapping[str, Any]) -> int:
    """How many processes compile ahead."""
    return len(os.sched_getaffinity(0)) if chosen["jobs"] is None else int(chosen["jobs"])


def _search(chosen: Mapping[str, Any]) -> Search:
    trials = None if chosen["trials"] is None else int(chosen["trials"])
    return Search(str(chosen["strategy"]), trials, int(chosen["search_seed"]))


def _show_dry(kernels: Mapping[str, Kernel], roots: Sequence[Path], requests: Sequence[Request]) -> None:
    """Prints how many configs of each study fit; without a GPU those of GPU implementations as on an H100 or H200."""
    for asked in requests:
        settings, target = values.settings(asked.chosen), _target(asked.chosen)
        with tempfile.TemporaryDirectory(prefix="fusebench-") as logs:
            this = Run(kernels, roots, Path(logs), settings)
            with _pool(this) as pool:
                for one in study.studies(kernels, asked.cells):
                    implementation = kernels[one.cell.case.kernel].implementations[one.cell.implementation]
                    elsewhere = settings.device == "cpu" and implementation.without_gpu != "timed"
                    device = target.device if target else ELSEWHERE if elsewhere else None
                    fits = study.ask_fits(this, pool, one, replace(_search(asked.chosen), trials=1), device)
                    found = Found(one, None, fits) if isinstance(fits, str) else Found(one, fits)
                    results.show([found], [])
                    if device:
                        print(
                            f"pruned for {device.name}: {'arch= compiles' if target else 'without a GPU nothing can be tuned'}"
                        )


@dataclass(frozen=True)
class _Job:
    """A job in hand."""

    this: Run
    asked: Request
    search: Search

    @property
    def quiet(self) -> bool:
        return bool(self.asked.chosen.get("quiet", False))


def _run(asked: Request, run_folder: Path, kernels: Mapping[str, Kernel], resumed: bool) -> int:
    """One job, in its folder. Raises UsageError before anything is measured, and StorageError when the disk takes no more."""
    begin = time.perf_counter()
    app.check_retry(asked, resumed)
    chosen = asked.chosen
    settings = values.settings(chosen)
    studies = study.studies(kernels, asked.cells)
    with folder.held(run_folder):
        if not resumed:
            folder.keep({**chosen, "device": settings.device}, run_folder, asked.command)
        job = _Job(Run(kernels, [Path(root) for root in asked.roots], run_folder, settings), asked, _search(chosen))
        latest = {r.id: r for r in store.read(run_folder, Record) if r.status not in asked.retry}
        known = app.unchanged(job.this, list(latest.values()), lambda record: record)
        found: list[Found] = []
        decisions: list[Decision] = []
        try:
            with report.progress(job.quiet) as bar:
                found = _searched(job, studies, known, bar)
                decisions = _decided(job, found, bar)
        except (KeyboardInterrupt, StorageError) as error:
            count = len(store.read(run_folder, Record))
            kept = f"{count} configs are kept; go on with resume={folder.whole(run_folder, asked.command)}"
            if isinstance(error, StorageError):  # later jobs of a multirun would meet the same disk
                raise StorageError(f"{error}; {kept}") from error
            print(f"interrupted: {kept}", file=sys.stderr)
            return app.INTERRUPTED
        saved = confirm.save(decisions, job.this) if chosen["save"] and decisions else []
    with while_it_is_read():
        if not job.quiet:
            results.show(found, decisions)
        _write(found, chosen)
        for line in saved:
            print(line)
        report.wall_time(job.this.clock, time.perf_counter() - begin)
        console().print(f"records: {run_folder / FILE}", soft_wrap=True)
    return 1 if any(one.fits and not any(map(_counts, one.records.values())) for one in found) else 0


def _counts(record: Record) -> bool:
    """Whether a study with such a record came to something: a time, or code for another device."""
    return study.seconds(record) is not None or record.status == "skipped"


def _searched(job: _Job, studies: Sequence[study.Study], known: Sequence[Record], bar: Any) -> list[Found]:
    """What the searches found. Raises UsageError where none can be made here."""
    found = []
    task = bar.add_task("starting", total=None)
    target, jobs = _target(job.asked.chosen), _jobs(job.asked.chosen)
    with _pool(job.this) as pool:
        for one in studies:
            fits = study.ask_fits(job.this, pool, one, job.search, target.device if target else None)
            if isinstance(fits, str):
                found.append(Found(one, refusal=fits))
                continue
            if target and not ahead.possible(study.implementation_of(job.this, one), fits):
                found.append(Found(one, refusal="arch= compiles what Torch's Triton and CUDA implementations launch"))
                continue
            own = {strategies.key(r.cell.config): r for r in known if one.has(r.cell)}
            current = Found(one, fits, records=own)
            found.append(current)
            budget = job.search.budget(len(fits.fitting))
            for number, _ in enumerate(study.compile_ahead(job.this, pool, current, job.search, jobs, target), 1):
                bar.update(task, description=f"{one.name}: {number} compiled ahead")
            if target:
                continue
            job.this.on_phase = _on_phase(bar, task, current, budget)
            for _ in study.run(job.this, pool, current, job.search, lambda record: None):
                bar.advance(task)
                if job.asked.chosen.get("verbose"):
                    record = list(current.records.values())[-1]
                    print(report.ended(record, len(current.records), budget), file=sys.stderr, flush=True)
    if all(one.fits is None for one in found):
        raise UsageError(
            "nothing to tune here: " + "; ".join(dict.fromkeys(f"{f.study.name}: {f.refusal}" for f in found))
        )
    return found


def _on_phase(bar: Any, task: Any, found: Found, budget: int) -> Callable[[Cell, str], None]:
    """What shows in the progress what is in hand, and the best time so far."""

    def show_it(cell: Cell, phase: str) -> None:
        ranked = found.ranked
        best = f"best {text_of(study.seconds(ranked[0]) or 0)}, " if ranked else ""
        count = f"{len(found.records)} of {budget} configs"
        bar.update(task, description=f"{found.study.name}: {count}, {best}{phase}")

    return show_it


def _decided(job: _Job, found: Sequence[Found], bar: Any) -> list[Decision]:
    chosen = job.asked.chosen
    plan = confirm.Plan(int(chosen["pairs"]), int(chosen["rounds"]), float(chosen["confidence"]))
    task = bar.add_task("comparing", total=None)
    searched = [one for one in found if one.fits]
    if not chosen["confirm"]:
        return [decision for one in searched if (decision := confirm.without_pairs(one))]
    job.this.on_phase = lambda cell, phase: bar.update(
        task, description=f"comparing {cell.label} {cell.case.id}: {phase}"
    )
    return confirm.decide(job.this, searched, plan, lambda match: bar.advance(task))


def _write(found: Sequence[Found], chosen: Mapping[str, Any]) -> None:
    """The files that were asked for."""
    if chosen["out"] is not None:
        show.write(results.frame(found), Path(chosen["out"]))
    if file := results.check_heatmap(chosen["heatmap"]):
        results.draw(found, file)
        print(f"heat map: {file}")


def _code_of(run_folder: Path) -> int:
    """0 if of every study in the folder a config has a time, else 1."""
    timed: dict[str, bool] = {}
    for record in store.read(run_folder, Record):
        name = replace(record.cell, config={}).id
        timed[name] = timed.get(name, False) or _counts(record)
    return 0 if all(timed.values()) else 1


def _pool(this: Run) -> Pool:
    return Pool(this.settings.device, this.roots, this.folder, this.settings.threads)
