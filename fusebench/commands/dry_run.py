"""`dry_run=true`: which cells would run, and why not the others, as far as can be told without a worker."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
FEW = 4  # cells of a variant that are named; of a grid there may be hundreds
LATER = "an implementation may still skip one for a reason of its own, which its worker finds when it has loaded it"
Roots = Sequence[Path]


def show(kernels: Mapping[str, Kernel], roots: Roots, requests: Sequence[Request]) -> None:
    """Prints a block for each case, what would run first, and how many would."""
    found = []
    for number, request in enumerate(requests):
        this = _run(kernels, roots, request.chosen)
        job = f"job {number}  " if len(requests) > 1 else ""
        found += [_Found(_heading(cell, job), _variant(cell), _name(cell), _fate(this, cell)) for cell in request.cells]
    _show(found, "cell")


def show_pairs(
    sides: Sequence[tuple[Mapping[str, Kernel], Roots]], pairs: Sequence[tuple[Cell, Cell]], chosen: Sequence[Mapping[str, Any]]
) -> None:  # fmt: skip
    """Prints which comparisons would be made, by what either side would do."""
    runs = [_run(kernels, roots, own) for (kernels, roots), own in zip(sides, chosen, strict=True)]
    found = []
    for pair in pairs:
        fates = [_fate(this, cell) for this, cell in zip(runs, pair, strict=True)]
        heading, variant, name = (" | ".join(dict.fromkeys(map(of, pair))) for of in (_heading, _variant, _name))
        reasons = [f"side {side}: {fate}" for side, fate in zip("AB", fates, strict=True) if fate not in (RUNS, PARITY)]
        untimed = ["interpreted or emulated on the CPU, never timed"] * (PARITY in fates)
        found.append(_Found(heading, variant, name, "; ".join(reasons or untimed) or RUNS))
    _show(found, "comparison")


def _run(kernels: Mapping[str, Kernel], roots: Roots, chosen: Mapping[str, Any]) -> Run:
    """Raises UsageError where the run could not begin."""
    folder.check_results(Path(chosen.get("out_dir") or folder.RESULTS))
    return Run(kernels, roots, Path(), values.settings(chosen))


def _fate(this: Run, cell: Cell) -> str:
    trial = Trial(this, cell)
    elsewhere = trial.worker_key[1] != sys.executable
    if broken := trial.implementation.broken:
        return FAILS + broken
    refused = trial.implementation.refusals(this.settings.device).get(cell.variant)
    if reason := trial.skip_reason() or (None if elsewhere else trial.implementation.missing()) or refused:
        return reason
    return PARITY if trial.interpreted and this.settings.plan.time_s else RUNS


@dataclass(frozen=True)
class _Found:
    """What would become of a cell, or of the two of a comparison: what it is shown under, of which variant, as which of its cells."""

    heading: str
    variant: str
    name: str
    fate: str


def _heading(cell: Cell, job: str = "") -> str:
    sizes = " ".join(f"{dimension}={size}" for dimension, size in cell.case.sizes.items())
    return f"[bold]{job}{cell.case.kernel}  {escape(cell.case.id)}[/]  {sizes}"


def _variant(cell: Cell) -> str:
    return replace(cell, config={}).label


def _name(cell: Cell) -> str:
    kind = "" if cell.inputs == "plain" else f" {cell.inputs} inputs"
    return cell.label + kind + (f" seed={cell.seed}" if cell.seed else "")


def _show(found: Sequence[_Found], what: str) -> None:
    """Prints a block for each heading, with those of one fate together, those that would run first, and how many would."""
    out = console()
    for heading, group in itertools.groupby(found, key=lambda one: one.heading):
        out.print(f"\n{heading}", highlight=False)
        fates: dict[str, dict[str, list[str]]] = {RUNS: {}, PARITY: {}}
        for one in group:
            fates.setdefault(one.fate, {}).setdefault(one.variant, []).append(one.name)
        for fate, variants in fates.items():
            if variants:
                said = fate if fate.startswith((RUNS, PARITY, FAILS)) else f"skipped  {fate}"
                names = [n if len(n) <= FEW else [f"{variant} ({len(n)} {what}s)"] for variant, n in variants.items()]
                out.print(f"{said}:  {', '.join(itertools.chain(*names))}", highlight=False, markup=False)
    runs = sum(one.fate in (RUNS, PARITY) for one in found)
    more = f"{len(found) - runs} would not; {LATER}"
    out.print(f"\n{counted(len(found), what)}: {runs} would run, {more}", highlight=False)
