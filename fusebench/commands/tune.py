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
from fusebench.comparison.statistics import FEWEST
from fusebench.configuration import values
from fusebench.configuration.request import Request
from fusebench.contract import Cell, Device
from fusebench.discovery import Kernel
from fusebench.errors import StorageError, UsageError
from fusebench.inspection import targets
from fusebench.inspection.targets import Target
from fusebench.records import store
from fusebench.records.record import Record
from fusebench.records.store import FILE
from fusebench.settings import Run
from fusebench.terminal import console, counted, while_it_is_read
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
    if chosen["kernel"] is None and chosen.get("story") is None:
        raise UsageError(
            "tune needs kernel=, such as kernel=lola, or an experiment= with steps; with implementation= and dtype= it says what is tuned"
        )
    if chosen["worker"]["inline"]:
        raise UsageError("worker=inline: a config may crash or hang, so each runs in a process; worker=process")
    cases.check_name("strategy", str(chosen["strategy"]), strategies.NAMES)
    if chosen["strategy"] == "optuna" and chosen["arch"] is not None:
        raise UsageError(
            f"strategy=optuna with arch={chosen['arch']}: it chooses by times, and arch= times nothing; "
            "expected strategy=grid or strategy=random, which trials= limits"
        )
    if chosen["strategy"] == "optuna":
        strategies.load_optuna()
    if chosen["trials"] is not None:
        cases.positive("trials", chosen["trials"])
    if cases.positive("pairs", chosen["pairs"]) < FEWEST and chosen["confirm"]:
        raise UsageError(
            f"pairs={chosen['pairs']}: expected {FEWEST} or more, as fewer have no interval and so never confirm a config; "
            "confirm=false keeps the fastest without pairs"
        )
    cases.positive("rounds", chosen["rounds"])
    cases.positive("search_seed", chosen["search_seed"], least=0)
    if chosen["jobs"] is not None:
        cases.positive("jobs", chosen["jobs"], least=0)
    _target(chosen)
    results.check_heatmap(chosen["heatmap"])
    if chosen["heatmap"] is not None and chosen["arch"] is not None:
        raise UsageError(
            f"heatmap={chosen['heatmap']} with arch={chosen['arch']}: it draws times, and arch= times nothing; leave one out"
        )
    if chosen["out"] is not None:
        folder.check_file("out", chosen["out"], (".csv", ".json", ".parquet"))
    if chosen["implementation"] is not None:
        return chosen
    if chosen.get("story") is not None:
        return {**chosen, "implementation": "all"}
    asked = [kernels[k] for k in cases.chosen("kernel", chosen["kernel"], kernels)]
    own = dict.fromkeys(
        f"{name}:{variant}" for k in asked for name, i in k.implementations.items() for variant in i.tunables
    )
    if not own:
        raise UsageError(f"no implementation of {', '.join(k.name for k in asked)} has TUNABLES: nothing to tune")
    return {**chosen, "implementation": list(own)}


def _target(chosen: Mapping[str, Any]) -> Target | None:
    """What `arch` names, for which configs are compiled and not run. Raises UsageError for a name that none has."""
    return None if chosen["arch"] is None else targets.target(str(chosen["arch"]))


def _jobs(chosen: Mapping[str, Any]) -> int:
    """How many processes compile ahead."""
    return len(os.sched_getaffinity(0)) if chosen["jobs"] is None else int(chosen["jobs"])


def _search(chosen: Mapping[str, Any]) -> Search:
    trials = None if chosen["trials"] is None else int(chosen["trials"])
    return Search(str(chosen["strategy"]), trials, int(chosen["search_seed"]), bool(chosen["fits"]))


def _show_dry(kernels: Mapping[str, Kernel], roots: Sequence[Path], requests: Sequence[Request]) -> None:
    """Prints how many configs of each study fit; without a GPU those of GPU implementations as on an H100 or H200."""
    for asked in requests:
        settings, target = values.settings(asked.chosen), _target(asked.chosen)
        folder.check_results(Path(asked.chosen["out_dir"] or folder.RESULTS))
        with tempfile.TemporaryDirectory(prefix="fusebench-") as logs:
            this = Run(kernels, roots, Path(logs), settings)
            with _pool(this) as pool:
                for one in study.studies(kernels, asked.cells):
                    implementation = kernels[one.cell.case.kernel].implementations[one.cell.implementation]
                    elsewhere = settings.device == "cpu" and implementation.without_gpu != "timed"
                    device = target.device if target else ELSEWHERE if elsewhere else None
                    fits = study.ask_fits(this, pool, one, replace(_search(asked.chosen), trials=1), device)
                    found = Found(one, None, fits) if isinstance(fits, str) else Found(one, fits)
                    results.show([found], [], timed=False)
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
    chosen = asked.chosen
    studies = study.studies(kernels, asked.cells)
    with app.in_folder(asked, run_folder, kernels, resumed) as this:
        job = _Job(this, asked, _search(chosen))
        latest = {r.id: r for r in store.read(run_folder, Record) if r.status not in asked.retry}
        known = app.unchanged(this, list(latest.values()), lambda record: record)
        found: list[Found] = []
        decisions: list[Decision] = []
        interrupted = ""
        try:
            with report.progress(job.quiet) as bar:
                _search_all(job, studies, known, found, bar)
                decisions = _decided(job, found, bar)
        except (KeyboardInterrupt, StorageError) as error:
            count = len(store.read(run_folder, Record))
            interrupted = app.goes_on(error, counted(count, "config"), run_folder, asked.command)
            decisions = confirm.settled(found, job.search) if chosen["confirm"] else []
        saved = confirm.save(decisions, this) if chosen["save"] and decisions else []
    with while_it_is_read():
        if not job.quiet:
            results.show(found, decisions, timed=not interrupted and chosen["arch"] is None)
        for line in saved:
            print(line)
        report.wall_time(this.clock, time.perf_counter() - begin)
        if (run_folder / FILE).exists():
            console().print(f"records: {run_folder / FILE}", soft_wrap=True)
    with while_it_is_read():  # files are written also where nobody reads on
        _write(found, chosen, drawn=not interrupted)
    if interrupted:
        return app.interrupted(interrupted)
    return 1 if any(one.fits and not any(map(_counts, one.records.values())) for one in found) else 0


def _counts(record: Record) -> bool:
    """Whether a study with such a record came to something: a time, or code for another device."""
    return study.seconds(record) is not None or record.status == "skipped"


def _search_all(
    job: _Job, studies: Sequence[study.Study], known: Sequence[Record], found: list[Found], bar: Any
) -> None:
    """Adds to `found` what the searches find. Raises UsageError where none can be made here."""
    task = bar.add_task("starting", total=None)
    target, jobs = _target(job.asked.chosen), _jobs(job.asked.chosen)
    with _pool(job.this) as pool:
        found += [_found(job, pool, one, known, target) for one in studies]
        if all(one.fits is None for one in found):
            refusals = dict.fromkeys(f"{one.study.name}: {one.refusal}" for one in found)
            raise UsageError("nothing to tune here: " + "; ".join(refusals))
        results.check_axes(found, job.search, job.asked.chosen["heatmap"])
        searched = [one for one in found if one.fits]
        total = sum(job.search.budget(one.fits) for one in searched if one.fits)
        done = sum(len(one.records) for one in searched)
        bar.update(task, total=total, advance=done)
        for number, outcome in enumerate(study.compile_ahead(job.this, pool, searched, job.search, jobs, target), 1):
            name = f"{outcome.cell.case.kernel} {outcome.cell.label}"
            now = sum(len(one.records) for one in searched)  # for arch= each is a record, else what failed
            bar.update(task, description=f"{name}: {number} compiled ahead", advance=now - done)
            done = now
        if not target:
            for one in searched:
                _search_one(job, pool, one, bar, task)


def _found(job: _Job, pool: Pool, one: study.Study, known: Sequence[Record], target: Target | None) -> Found:
    """A study with the configs that fit and those that are on record, or why it cannot be searched."""
    fits = study.ask_fits(job.this, pool, one, job.search, target.device if target else None)
    if isinstance(fits, str):
        return Found(one, refusal=fits)
    if target and not ahead.possible(study.implementation_of(job.this, one), fits):
        return Found(one, refusal="arch= compiles what Torch's Triton and CUDA implementations launch")
    return Found(one, fits, records={strategies.key(r.cell.config): r for r in known if one.has(r.cell)})


def _search_one(job: _Job, pool: Pool, found: Found, bar: Any, task: Any) -> None:
    assert found.fits
    budget = job.search.budget(found.fits)
    job.this.on_phase = _on_phase(bar, task, found, budget)
    for record in study.run(job.this, pool, found, job.search):
        bar.advance(task)
        if job.asked.chosen.get("verbose"):
            print(report.ended(record, len(found.records), budget), file=sys.stderr, flush=True)


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
    plan = confirm.PairPlan(int(chosen["pairs"]), int(chosen["rounds"]), float(chosen["confidence"]))
    task = bar.add_task("comparing", total=None)
    searched = [one for one in found if one.fits]
    if not chosen["confirm"]:
        return [decision for one in searched if (decision := confirm.without_pairs(one))]
    job.this.on_phase = lambda cell, phase: bar.update(
        task, description=f"comparing {cell.label} {cell.case.id}: {phase}"
    )
    return confirm.decide(job.this, searched, plan, lambda match: bar.advance(task))


def _write(found: Sequence[Found], chosen: Mapping[str, Any], drawn: bool) -> None:
    """The files that were asked for, a heat map where one is to be `drawn`."""
    if chosen["out"] is not None:
        show.write(results.frame(found), Path(chosen["out"]))
    if drawn and (file := results.check_heatmap(chosen["heatmap"])):
        if results.draw(found, file):
            print(f"heat map: {file}")
        else:
            said = "no study has times at several values of two tunables: nothing is drawn"
            print(f"fusebench: heatmap={file}: {said}", file=sys.stderr)


def _code_of(run_folder: Path) -> int:
    """0 if of every study in the folder a config has a time, else 1."""
    timed: dict[str, bool] = {}
    for record in store.read(run_folder, Record):
        name = replace(record.cell, config={}).id
        timed[name] = timed.get(name, False) or _counts(record)
    return 0 if all(timed.values()) else 1


def _pool(this: Run) -> Pool:
    return Pool(this.settings.device, this.roots, this.folder, this.settings.threads)
