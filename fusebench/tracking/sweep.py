"""The cells of the measured commit that asv asks for, run in one sweep: workers start once, not once a kernel."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fusebench import discovery, machine
from fusebench.cases import make_case
from fusebench.contract import MODES, Cell
from fusebench.discovery import Kernel
from fusebench.errors import UsageError
from fusebench.records.record import Record
from fusebench.run import run
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.tracking.cells import TIME_S
from fusebench.tracking.reasons import Key
from fusebench.workers.cores import check_threads

Pairs = Sequence[tuple[str, str]]  # labels with ids of cases


@dataclass(frozen=True)
class Swept:
    """Of one cell: status, reason and traceback of its record, samples in seconds, parity error in budgets."""

    status: str
    reason: str | None = None
    traceback: str = ""
    samples: list[float] = field(default_factory=list)
    parity_error: float | None = None


Outcomes = dict[Key, Swept]


def sweep(chosen: Mapping[str, Pairs], paths: Sequence[Path]) -> Outcomes:
    """Runs the cells as the measured commit has them; what it does not have is left out. Prints a line for each cell."""
    kernels: dict[str, Kernel] = {}
    cells: list[Cell] = []
    outcomes: Outcomes = {}
    for name, pairs in chosen.items():
        try:
            kernel = _measured(name, paths)
        except UsageError as error:  # a kernel.py that is none costs its own cells
            outcomes |= {key_of(name, *pair): Swept("failed", str(error)) for pair in pairs}
            continue
        if kernel is not None:
            kernels[name] = kernel
            cells += _cells(kernel, pairs)
    roots = [root for root in discovery.roots_of(paths, _home()) if root.is_dir()]
    discovery.use_roots(roots)
    device = "cuda" if machine.gpu() else "cpu"
    threads = check_threads(os.environ.get("FUSEBENCH_THREADS") or None) if device == "cpu" else None
    # asv deletes its working folder
    this = Run(kernels, roots, Path.cwd() / "run", Settings(device, Plan(TIME_S), threads=threads))
    for record in run(this, cells):
        outcomes[key_of(record.kernel, record.label, record.case.id)] = _read(record)
        print(f"{record.status}  {record.kernel} {record.case.id} {record.label}", flush=True)  # a dot in asv's output
    return outcomes


def key_of(kernel: str, label: str, case_id: str) -> Key:
    """Kernel, implementation:variant, case name and dtype, and a mode that is not forward. What more stands in an id may have been
    added after the measured commit."""
    name, dtype, *more = case_id.split("/")
    return (kernel, label, name, dtype, *(mode for mode in MODES[1:] if mode in more))


def _home() -> Path:
    """The kernels of the measured commit; an environment without a checkout measures ours."""
    checkout = os.environ.get("ASV_ENV_DIR")
    return Path(checkout) / "project" / "implementations" if checkout else discovery.HOME


def _measured(name: str, paths: Sequence[Path]) -> Kernel | None:
    """The kernel as the measured commit has it, or None. Raises UsageError for a kernel.py that is none."""
    folder = _home() / name
    roots = discovery.roots_of(paths, folder)  # this kernel's folder alone: another one's mistakes cost it nothing
    roots = roots if (folder / "kernel.py").exists() else roots[1:]
    return discovery.find_kernels(roots).get(name) if roots else None


def _cells(kernel: Kernel, pairs: Pairs) -> Iterator[Cell]:
    """The kernel's cells of that name, those of one case together."""
    for case_id in dict.fromkeys(case_id for _, case_id in pairs):
        _, _, name, dtype, *mode = key_of(kernel.name, "", case_id)
        if name not in kernel.mathematics.cases:
            continue
        case = make_case(kernel, name, dtype, mode=(*mode, MODES[0])[0])
        own = (Cell(case, i.name, variant) for i in kernel.implementations.values() for variant in i.variants)
        wanted = {label for label, asked in pairs if asked == case_id}
        yield from (cell for cell in own if cell.label in wanted)


def _read(record: Record) -> Swept:
    """What asv needs of a record. The error is the first output's, the same in every run; how many calls are timed is not."""
    timed = record.parity.timed if record.status == "wrong" else None
    verdict = timed or record.parity.first
    known = verdict is not None and not verdict.problem and math.isfinite(verdict.ratio)
    error = float(f"{verdict.ratio:.4g}") if verdict and known else None
    if record.status == "ok" and record.timing and record.timing.machine_busy:
        reason = f"machine busy, so that its figure is not kept: {record.timing.remedy} helps (make asv ARGS=threads=1)"
        return Swept("skipped", reason, parity_error=error)
    samples = list(record.timing.samples) if record.timing else []
    return Swept(record.status, record.reason, record.traceback, samples, error)
