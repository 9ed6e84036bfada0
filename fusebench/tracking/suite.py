"""The asv suite: one benchmark class a kernel, with latency and parity error of each (implementation:variant, case).

The harness and the list of kernels are the working tree's, what is measured is the commit's `implementations`, checked out by
environment.py. A class has the cells that may have a figure on this machine, and those that stand in the history already. One sweep
runs all cells that are asked for, before asv reads their figures.

FUSEBENCH_PATH names folders of kernels that join, separated by `:`, as they are on disk; FUSEBENCH_THREADS is `threads=`, whose
figures are a series of their own; FUSEBENCH_WORDS chooses cells beside those that are always tracked, in JSON, by cells.WORDS.
`fusebench asv` sets these. The environment sets FUSEBENCH_BENCH, asv's --bench, and FUSEBENCH_HISTORY, its folder of results.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusebench import discovery, machine
from fusebench.cases import make_case
from fusebench.contract import DTYPES, MODES, Cell
from fusebench.discovery import Kernel
from fusebench.tracking import reasons
from fusebench.tracking.cells import METHODS, Tracked, labels, on_this_machine, tracked
from fusebench.tracking.reasons import Key
from fusebench.tracking.sweep import Outcomes, Swept, key_of, sweep

TIMEOUT_S = 4 * 3600.0  # asv's limit for the sweep; a cell has the harness's own
ABOUT = {
    "track_latency": "the time of a call, the median of the samples that bench takes",
    "track_parity_error": "the largest error ÷ budget; above 1 it is wrong",
}
KEPT_AS = {  # versions are fixed: by default asv forgets all figures when the source changes
    "track_latency": {"type": "time", "unit": "seconds", "version": "1"},
    "track_parity_error": {"unit": "budgets", "version": "2"},
}
Grid = tuple[list[str], list[str]]  # of one benchmark: labels and ids of cases, asv's two parameters


@dataclass(frozen=True)
class Suite:
    """The kernels of the working tree, the cells that are tracked of each, and the grid of each benchmark."""

    kernels: Mapping[str, Kernel]
    cells: Mapping[str, Sequence[Tracked]]
    grids: Mapping[tuple[str, str], Grid]

    def refused(self, kernel: str, method: str) -> dict[Key, str]:
        """Why cells of the kernel can have no figure of that kind on this machine."""
        place = METHODS.index(method)
        own = {key_of(kernel, t.cell.label, t.cell.case.id): t.refusals[place] for t in self.cells[kernel]}
        return {key: reason for key, reason in own.items() if reason}

    def selected(self, patterns: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
        """(label, case) by kernel of what asv is going to read where its --bench has these patterns; without any all."""
        found: dict[str, dict[tuple[str, str], None]] = {}
        for (kernel, method), grid in self.grids.items():
            for pair in itertools.product(*grid):
                name = f"{benchmark_name(kernel, method)}({', '.join(map(repr, pair))})"
                if not patterns or any(re.search(pattern, name) for pattern in patterns):
                    found.setdefault(kernel, {})[pair] = None
        return {kernel: list(pairs) for kernel, pairs in found.items()}


def suite() -> Suite:
    """What is tracked on this machine."""
    roots = discovery.roots_of(paths())
    kernels = discovery.find_kernels(roots)
    device = "cuda" if machine.gpu() else "cpu"
    words = json.loads(os.environ.get("FUSEBENCH_WORDS") or "{}")
    asked = tracked(kernels, words, device) if words else []
    cells = {cell.id: cell for cell in tracked(kernels, {}, device) + asked}
    found = on_this_machine(kernels, roots, cells.values(), {cell.id for cell in asked}, device)
    by_kernel = {name: [t for t in found if t.cell.case.kernel == name] for name in kernels}
    history = _history()
    grids = {
        (name, method): _grid(
            kernels[name],
            (t.cell for t in own if not t.refusals[place]),
            history.get(benchmark_name(name, method), ([], [])),
        )
        for name, own in by_kernel.items()
        for place, method in enumerate(METHODS)
    }
    return Suite(kernels, by_kernel, {key: grid for key, grid in grids.items() if all(grid)})


def classes() -> dict[str, type]:
    """The benchmark classes of all kernels in the working tree and FUSEBENCH_PATH, by name: `PaddedSoftmax`."""
    this = suite()

    def setup_cache(self: Any) -> Outcomes:
        patterns = [p for p in os.environ.get("FUSEBENCH_BENCH", "").split("\n") if p]
        chosen = this.selected(patterns)
        outcomes = sweep(chosen, paths())
        why = {key: reason for name in chosen for key, reason in this.refused(name, "track_latency").items()}
        for key, outcome in outcomes.items():
            if outcome.samples or outcome.status != "skipped":
                why.pop(key, None)  # in the history, though it is tracked no more
            elif key not in why or outcome.parity_error is None:
                why[key] = str(outcome.reason)
        for line in reasons.together(why):
            print(f"n/a  {line}", flush=True)  # environment.py lets asv show it
        if patterns:
            print(
                "n/a  or as an earlier run of the commit left it, or `failed` if none did: what this run was not asked for",
                flush=True,
            )
        if file := os.environ.get("FUSEBENCH_REASONS"):
            reasons.keep(Path(file), why, outcomes)
        return outcomes

    setup_cache.timeout = TIMEOUT_S  # type: ignore[attr-defined]
    setup_cache.pretty_source = ""  # type: ignore[attr-defined]
    made = {}
    for name in this.kernels:
        members = {method: _benchmark(this, name, method) for method in METHODS if (name, method) in this.grids}
        more = {"setup_cache": setup_cache, "param_names": ("implementation", "case"), "timeout": 300.0}
        made[class_name(name)] = type(class_name(name), (), members | more)
    return made


def class_name(kernel: str) -> str:
    return "".join(word.capitalize() for word in kernel.split("_"))


def benchmark_name(kernel: str, method: str) -> str:
    """As asv has it, from suites/benchmarks.py; the parameters follow in brackets."""
    return f"benchmarks.{class_name(kernel)}.{method}"


def paths() -> list[Path]:
    """The folders in FUSEBENCH_PATH; relative ones are meant from where asv was started, not from its temporary folders."""
    start = Path(os.environ.get("ASV_CONF_DIR", "."))
    return [start / path for path in os.environ.get("FUSEBENCH_PATH", "").split(os.pathsep) if path]


def _benchmark(this: Suite, kernel: str, method: str) -> Callable[..., Any]:
    """What asv calls for each cell of the grid. What its pages show as the source is what a reader of theirs has to know."""
    read = {"track_latency": _latency, "track_parity_error": _parity_error}[method]

    def track(self: Any, outcomes: Outcomes, implementation: str, case: str) -> Any:
        found = outcomes.get(key_of(kernel, implementation, case))
        return read(found or Swept("skipped", "the measured commit does not have it"))

    text = [f"{kernel}: {ABOUT[method]}"]
    text += [f"n/a  {line}" for line in reasons.together(this.refused(kernel, method))]
    track.__name__, track.__qualname__ = method, f"{class_name(kernel)}.{method}"
    vars(track).update(KEPT_AS[method], params=this.grids[kernel, method], pretty_source="\n".join(text))
    return track


def _latency(outcome: Swept) -> Any:
    """The samples, whose median, quartiles and interval asv keeps as if they were its own."""
    # asv does not document that a `track_` method may return these
    return {"samples": outcome.samples, "number": 1} if outcome.status == "ok" else _missing(outcome)


def _parity_error(outcome: Swept) -> float:
    """The largest error ÷ budget: above 1 it is wrong. Interpreted kernels, which have no latency, have it too."""
    return outcome.parity_error if outcome.parity_error is not None else _missing(outcome)


def _missing(outcome: Swept) -> float:
    """NaN, which asv shows as n/a, for what cannot be measured here. Raises for a cell that should have been, for `failed`."""
    if outcome.status == "skipped":
        print(f"n/a: {outcome.reason}")  # asv shows it with --show-stderr
        return math.nan
    raise RuntimeError(f"{outcome.status}: {outcome.reason}\n{outcome.traceback}")


def _grid(kernel: Kernel, cells: Iterable[Cell], history: Grid) -> Grid:
    """The parameters of a benchmark: of the cells, and of those in asv's history which the kernel still has. asv's pages have no others
    than the last run had, and that may have been on another machine."""
    cells = list(cells)
    variants = [(i.name, v) for i in kernel.implementations.values() for v in i.variants]
    every_case = itertools.product(kernel.mathematics.cases, DTYPES, MODES)
    named = [make_case(kernel, name, dtype, mode=mode) for name, dtype, mode in every_case]
    every = {Cell(case, *variant).label for case in named[:1] for variant in variants}, {case.id for case in named}
    own = labels(kernel, cells), [cell.case.id for cell in cells]
    found = [
        list(dict.fromkeys([*ours, *(name for name in theirs if name in known)]))
        for ours, theirs, known in zip(own, history, every, strict=True)
    ]
    return found[0], found[1]


def _history() -> dict[str, Grid]:
    """The parameters that asv keeps beside its results, by benchmark."""
    file = Path(os.environ.get("FUSEBENCH_HISTORY", "")) / "benchmarks.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    grids = {name: b["params"] for name, b in kept.items() if isinstance(b, dict) and len(b.get("params", ())) == 2}
    return {
        name: ([ast.literal_eval(v) for v in g[0]], [ast.literal_eval(v) for v in g[1]]) for name, g in grids.items()
    }
