"""Which cells asv tracks: those of every kernel, or in the words of `bench`; where they have a figure, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusebench.cases import ODD, chosen, make_case, select_cells
from fusebench.cell import Trial
from fusebench.contract import DTYPES, Cell
from fusebench.discovery import Kernel
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan

CPU_FLOPS = 2e7  # beyond it a judge takes seconds on two cores
TIME_S = 0.2  # sampling budget of a cell: a history is read for steps, not for percents
METHODS = ("track_latency", "track_parity_error")
WORDS = ("kernel", "implementation", "case", "dtype", "mode")  # keys of bench, by which cells are chosen
REST = {"shape": {}, "option": {}, "config": {}, "seed": 0, "inputs": "plain", "precision": "ieee", "batch": None, "shapes": None}  # fmt: skip
# asv's pages draw the first eight implementations: one variant of each framework, those first that have a time on every machine
SHOWN_FIRST = ("torch_eager", "triton", "torch_compile", "flax", "cuda", "jax_triton")


# why a cell stays away from a CPU where no words ask for it: a run of all kernels is to end within two minutes on two cores
NOT_TIMED = (
    "interpreted or emulated on the CPU, never timed: its parity is tracked where it is asked for, with implementation="
)
NOT_LIGHT = "a case of many FLOPs is tracked on a CPU where it is asked for, with case="
NOT_FIRST = (
    "of an implementation one variant is tracked on a CPU, others where they are asked for, with implementation="
)


@dataclass(frozen=True)
class Tracked:
    """A cell, and for each of METHODS why it has no figure on this machine, as far as can be told beforehand; "" where it may have."""

    cell: Cell
    refusals: tuple[str, str]


def tracked(kernels: Mapping[str, Kernel], words: Mapping[str, Any], device: str) -> list[Cell]:
    """The cells that the words of `bench` choose, kernel by kernel.

    Without `case` the first named case in every dtype, and `odd` in float32: no hour-long suite, and no tile divides all of them.
    Without `dtype` float32 alone on a CPU, without `mode` forward. Raises UsageError as `bench` does.
    """
    dtypes = chosen("dtype", words.get("dtype", DTYPES if device == "cuda" else "float32"), DTYPES)
    config = {**REST, "kernel": "all", "implementation": "all", "case": None, **words, "dtype": dtypes}
    cells = select_cells(kernels, config)
    if "case" in words:
        small = "dtype" not in words  # odd in the other dtypes only where it is asked for
        return [c for c in cells if not small or c.case.id.split("/")[0] != ODD or c.case.dtype == "float32"]
    found: dict[tuple[str, str], Cell] = {}
    for name in dict.fromkeys(c.case.kernel for c in cells):
        own = [c for c in cells if c.case.kernel == name]
        if "float32" in dtypes and ODD in kernels[name].mathematics.cases:
            odd = {c.case.mode: make_case(kernels[name], ODD, mode=c.case.mode) for c in own}
            own += [replace(c, case=odd[c.case.mode]) for c in own if c.case.dtype == "float32"]
        found |= {(name, c.id): c for c in own}
    return list(found.values())


def on_this_machine(
    kernels: Mapping[str, Kernel], roots: Sequence[Path], cells: Iterable[Cell], asked: Container[str], device: str
) -> list[Tracked]:
    """The cells with what keeps them from a figure here; those whose ids are `asked` for with words by less. A file that
    is broken has one as long as it fails: that shows."""
    this = Run(kernels, roots, Path(), Settings(device, Plan(TIME_S)))
    found = []
    for cell in cells:
        trial = Trial(this, cell)
        if trial.implementation.broken:
            found.append(Tracked(cell, ("", "")))
            continue
        reason = trial.skip_reason() or trial.implementation.missing() or ""
        if not reason and device == "cpu" and cell.id not in asked:
            reason = _stays_away(trial)
        untimed = f"{trial.implementation.without_gpu} on the CPU: never timed" if trial.interpreted else ""
        found.append(Tracked(cell, (reason or untimed, reason)))
    return found


def _stays_away(trial: Trial) -> str:
    """Why a cell that could run on the CPU does not by default, or ""."""
    case = trial.cell.case
    if trial.interpreted:
        return NOT_TIMED
    if trial.cell.variant != next(iter(trial.implementation.variants)):
        return NOT_FIRST
    heavy = case.id.split("/")[0] != ODD and trial.kernel.mathematics.flops(case) > CPU_FLOPS
    return NOT_LIGHT if heavy else ""


def labels(kernel: Kernel, cells: Iterable[Cell]) -> list[str]:
    """The cells' labels, with the first variant of each framework before all others."""

    def rank(cell: Cell) -> tuple[int, int]:
        own = kernel.implementations[cell.implementation].variants
        known = SHOWN_FIRST.index(cell.implementation) if cell.implementation in SHOWN_FIRST else len(SHOWN_FIRST)
        return list(own).index(cell.variant), known

    return list(dict.fromkeys(cell.label for cell in sorted(cells, key=rank)))
