"""The asv suite: one benchmark class a kernel, with latency and parity error of each (implementation:variant, case).

The harness and the list of kernels are the working tree's, what is measured is the commit's `implementations`, checked out by
environment.py. A kernel, implementation, variant or case that the commit does not have yet is n/a there. Folders of
kernels named in FUSEBENCH_PATH (separated by `:`) join, as they are on disk. FUSEBENCH_THREADS is `threads=`: figures of another
number of threads are a series of their own. A figure of a busy machine is none.
"""

from __future__ import annotations

import math
import os
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusebench import discovery, machine
from fusebench.cases import make_case
from fusebench.contract import Case, Cell
from fusebench.discovery import Kernel
from fusebench.records.record import Record
from fusebench.run import run
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers.cores import check_threads

TIME_S = 0.2  # sampling budget of a cell: a history is read for steps, not for percents
TIMEOUT_S = 4 * 3600.0  # asv's limit for the sweep of one kernel; a cell has the harness's own
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Outcome:
    """Of one cell: status, reason and traceback of its record, samples in seconds, parity error in budgets."""

    status: str
    reason: str | None = None
    traceback: str = ""
    samples: list[float] = field(default_factory=list)
    parity_error: float | None = None


Outcomes = dict[tuple[str, ...], Outcome]  # by `_key`


class Benchmarks:
    """What asv calls; `setup_cache`, which each kernel's class adds, gives the first argument.

    Versions are fixed, because by default asv forgets all figures when the source of these methods changes.
    """

    param_names = ("implementation", "case")
    timeout = 300.0

    def track_latency(self, outcomes: Outcomes, implementation: str, case: str) -> Any:
        """The samples, whose median, quartiles and interval asv keeps as if they were its own (undocumented)."""
        outcome = _outcome(outcomes, implementation, case)
        return {"samples": outcome.samples, "number": 1} if outcome.status == "ok" else _missing(outcome)

    track_latency.type = "time"  # type: ignore[attr-defined]
    track_latency.unit = "seconds"  # type: ignore[attr-defined]
    track_latency.version = "1"  # type: ignore[attr-defined]

    def track_parity_error(self, outcomes: Outcomes, implementation: str, case: str) -> float:
        """The largest error ÷ budget: above 1 it is wrong. Interpreted kernels, which have no latency, have it too."""
        outcome = _outcome(outcomes, implementation, case)
        return outcome.parity_error if outcome.parity_error is not None else _missing(outcome)

    track_parity_error.unit = "budgets"  # type: ignore[attr-defined]
    track_parity_error.version = "2"  # type: ignore[attr-defined]


def classes() -> dict[str, type]:
    """The benchmark classes of all kernels in the working tree and FUSEBENCH_PATH, by name: `PaddedSoftmax`."""
    made = [_benchmarks(k) for k in discovery.find_kernels(discovery.roots_of(_paths())).values()]
    return {c.__name__: c for c in made}


def sweep(name: str) -> Outcomes:
    """Runs all cells of the measured commit's kernel; {} where the commit does not have it."""
    kernel, roots = _measured(name)
    if kernel is None:
        return {}
    device = "cuda" if machine.gpu() else "cpu"
    cells = [Cell(c, i.name, v) for c in _cases(kernel) for i in kernel.implementations.values() for v in i.variants]
    here = [cell for cell in cells if device == "cuda" or cell.case.dtype == "float32"]
    outcomes = {_key(c.label, c.case.id): _skipped("16-bit dtypes are tracked on a GPU") for c in cells}
    threads = check_threads(os.environ.get("FUSEBENCH_THREADS") or None) if device == "cpu" else None
    settings = Settings(device, Plan(TIME_S), threads=threads)
    this = Run({name: kernel}, roots, Path.cwd() / "run", settings)  # asv deletes its working folder
    return outcomes | {_key(r.label, r.case.id): _read(r) for r in run(this, here)}


def _benchmarks(kernel: Kernel) -> type:
    """The class of one kernel. Its parameters are the same on every machine; what cannot run on this one is n/a."""

    def setup_cache(self: Any) -> Outcomes:
        return sweep(kernel.name)

    setup_cache.timeout = TIMEOUT_S  # type: ignore[attr-defined]
    # asv takes two caches from the same line of the same module for one: each needs a module of its own, if only in name.
    setup_cache.__module__ = f"{__name__}.{kernel.name}"
    sys.modules[setup_cache.__module__] = types.ModuleType(setup_cache.__module__)
    cases = _cases(kernel)
    labels = [Cell(cases[0], i.name, v).label for i in kernel.implementations.values() for v in i.variants]
    name = "".join(word.capitalize() for word in kernel.name.split("_"))
    return type(name, (Benchmarks,), {"setup_cache": setup_cache, "params": (labels, [case.id for case in cases])})


def _cases(kernel: Kernel) -> list[Case]:
    """The first named case in every dtype, and `odd` in float32: no hour-long suite, and no tile divides all of them."""
    first = next(iter(kernel.mathematics.cases))
    odd = [make_case(kernel, "odd")] if "odd" in kernel.mathematics.cases and first != "odd" else []
    return [*(make_case(kernel, first, dtype) for dtype in DTYPES), *odd]


def _measured(name: str) -> tuple[Kernel | None, Sequence[Path]]:
    """The kernel as the measured commit has it, and the folders to search; an environment without a checkout measures ours."""
    checkout = os.environ.get("ASV_ENV_DIR")
    folder = (Path(checkout) / "project" / "implementations" if checkout else discovery.HOME) / name
    roots = discovery.roots_of(_paths(), folder)  # this kernel's folder alone: another one's mistakes cost it nothing
    roots = roots if (folder / "kernel.py").exists() else roots[1:]
    return (discovery.find_kernels(roots).get(name) if roots else None), roots


def _paths() -> list[Path]:
    """The folders in FUSEBENCH_PATH; relative ones are meant from where asv was started, not from its temporary folders."""
    start = Path(os.environ.get("ASV_CONF_DIR", "."))
    return [start / path for path in os.environ.get("FUSEBENCH_PATH", "").split(os.pathsep) if path]


def _read(record: Record) -> Outcome:
    """What asv needs of a record. The error is the first output's, the same in every run; how many calls are timed is not."""
    timed = record.parity.timed if record.status == "wrong" else None
    verdict = timed or record.parity.first
    known = verdict is not None and not verdict.problem and math.isfinite(verdict.ratio)
    error = float(f"{verdict.ratio:.4g}") if verdict and known else None
    if record.status == "ok" and record.timing and record.timing.machine_busy:
        reason = f"machine busy, so that its figure is not kept: {record.timing.remedy} (make asv ARGS=threads=1)"
        return Outcome("skipped", reason, parity_error=error)
    samples = list(record.timing.samples) if record.timing else []
    return Outcome(record.status, record.reason, record.traceback, samples, error)


def _key(label: str, case_id: str) -> tuple[str, ...]:
    """Implementation:variant, case name and dtype. What more stands in an id may have been added after the measured commit."""
    return (label, *case_id.split("/")[:2])


def _outcome(outcomes: Outcomes, implementation: str, case: str) -> Outcome:
    return outcomes.get(_key(implementation, case)) or _skipped("the measured commit does not have it")


def _skipped(reason: str) -> Outcome:
    return Outcome("skipped", reason)


def _missing(outcome: Outcome) -> float:
    """NaN, which asv shows as n/a, for what cannot be measured here. Raises for a cell that should have been, for `failed`."""
    if outcome.status == "skipped":
        print(f"n/a: {outcome.reason}")  # asv shows it with --show-stderr
        return math.nan
    raise RuntimeError(f"{outcome.status}: {outcome.reason}\n{outcome.traceback}")
