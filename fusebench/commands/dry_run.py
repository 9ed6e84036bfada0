"""`dry_run=true`: which cells would run, and why not the others, as far as can be told without a worker."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from fusebench import folder
from fusebench.cell import Trial
from fusebench.configuration import values
from fusebench.configuration.request import Request
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.settings import Run
from fusebench.terminal import console, counted

RUNS = "would run"
FAILS = "would fail: "  # before why
PARITY = "would be checked on the CPU, interpreted or emulated, never timed"
LATER = "an implementation may still skip one for a reason of its own, which its worker finds when it has loaded it"
Roots = Sequence[Path]


def show(kernels: Mapping[str, Kernel], roots: Roots, requests: Sequence[Request]) -> None:
    """Prints a block for each case, what would run first, and how many would."""
    found = []
    for number, request in enumerate(requests):
        this = _run(kernels, roots, request.chosen)
        found += [(f"job {number}  " if len(requests) > 1 else "", cell, _fate(this, cell)) for cell in request.cells]
    for (job, kernel, case), group in itertools.groupby(found, key=lambda f: (f[0], f[1].case.kernel, f[1].case)):
        sizes = " ".join(f"{dimension}={size}" for dimension, size in case.sizes.items())
        console().print(f"\n[bold]{job}{kernel}  {escape(case.id)}[/]  {sizes}", highlight=False)
        _together([(_name(cell), fate) for _, cell, fate in group])
    _count([fate for *_, fate in found], "cell")


def show_pairs(
    sides: Sequence[tuple[Mapping[str, Kernel], Roots]], pairs: Sequence[tuple[Cell, Cell]], chosen: Sequence[Mapping[str, Any]]
) -> None:  # fmt: skip
    """Prints which comparisons would be made, by what either side would do."""
    runs = [_run(kernels, roots, own) for (kernels, roots), own in zip(sides, chosen, strict=True)]
    found = []
    for pair in pairs:
        fates = [_fate(this, cell) for this, cell in zip(runs, pair, strict=True)]
        name = " | ".join(dict.fromkeys(f"{cell.case.kernel} {cell.case.id} {_name(cell)}" for cell in pair))
        reasons = [f"side {side}: {fate}" for side, fate in zip("AB", fates, strict=True) if fate not in (RUNS, PARITY)]
        untimed = ["interpreted or emulated on the CPU, never timed"] * (PARITY in fates)
        found.append((name, "; ".join(reasons or untimed) or RUNS))
    _together(found)
    _count([fate for _, fate in found], "comparison")


def _run(kernels: Mapping[str, Kernel], roots: Roots, chosen: Mapping[str, Any]) -> Run:
    """Raises UsageError where the run could not begin."""
    folder.check_results(Path(chosen.get("out_dir") or folder.RESULTS))
    return Run(kernels, roots, Path(), values.settings(chosen))


def _fate(this: Run, cell: Cell) -> str:
    trial = Trial(this, cell)
    elsewhere = trial.worker_key[1] != sys.executable
    if broken := trial.implementation.broken:
        return FAILS + broken
    if reason := trial.skip_reason() or (None if elsewhere else trial.implementation.missing()):
        return reason
    return PARITY if trial.interpreted and this.settings.plan.time_s else RUNS


def _name(cell: Cell) -> str:
    kind = "" if cell.inputs == "plain" else f" {cell.inputs} inputs"
    return cell.label + kind + (f" seed={cell.seed}" if cell.seed else "")


def _together(found: Sequence[tuple[str, str]]) -> None:
    """What becomes of the names, those with one fate together, those that would run first."""
    fates: dict[str, list[str]] = {RUNS: [], PARITY: []}
    for name, fate in found:
        fates.setdefault(fate, []).append(name)
    for fate, names in fates.items():
        if names:
            said = fate if fate.startswith((RUNS, PARITY, FAILS)) else f"skipped  {fate}"
            console().print(f"{said}:  {', '.join(names)}", highlight=False, markup=False)


def _count(fates: Sequence[str], what: str) -> None:
    runs = sum(fate in (RUNS, PARITY) if what == "cell" else fate == RUNS for fate in fates)
    console().print(
        f"\n{counted(len(fates), what)}: {runs} would run, {len(fates) - runs} would not; {LATER}", highlight=False
    )
