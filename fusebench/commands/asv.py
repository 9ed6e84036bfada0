"""`fusebench asv`: `asv run` on the cells that the words of `bench` choose."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import discovery, machine
from fusebench.commands import runs
from fusebench.errors import UsageError, unknown
from fusebench.tracking import suite
from fusebench.tracking.cells import METHODS, WORDS, tracked
from fusebench.tracking.reasons import together
from fusebench.workers.cores import check_threads

KEYS = (*WORDS, "threads", "path")
HELP = """usage: fusebench asv [KEY=VALUE …] [arguments of asv run]

Runs the asv suite on the present commit, or on those of a range such as HEAD~3..HEAD, and keeps the figures under .asv/ (docs/tracking.md).

  kernel=soft*          only these kernels; names and patterns as bench has them: a list in brackets, all, ~ leaves some out
  implementation=[torch_eager,triton]
  case=odd              named cases; without it each kernel's first, and odd in float32. Another one is tracked from then on
  dtype=float32         without it all on a GPU, and float32 on a CPU
  mode=backward         forward_backward, a list, or all; without it forward
  threads=1             of all frameworks on a CPU: a series of its own
  path=DIR              a folder of kernels of your own

What is n/a here, and why, stands in asv's output and beside the results, in .asv/results/MACHINE/COMMIT-….na.txt."""


def main(arguments: list[str]) -> int:
    """Runs asv and returns its exit code: 0, 1 or 2 where something failed. Raises UsageError."""
    keys, others = _parse(arguments)
    if not Path("asv.conf.json").is_file():
        raise UsageError("asv.conf.json is not here: fusebench asv runs in the folder of the repository")
    os.environ |= _environment(keys)
    words = {key: runs.words(keys[key]) for key in WORDS if key in keys}
    chosen = [flag for pattern in _patterns(words) for flag in ("--bench", pattern)] if words else []
    # a cell that fails or has no figure says why
    return subprocess.call([sys.executable, "-m", "asv", "run", "--show-stderr", *chosen, *others])


def _parse(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Our keys with their values, and what is asv's. Raises UsageError."""
    keys, others = {}, []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not re.fullmatch(r"\w+", key):
            others.append(argument)
            continue
        if key not in KEYS:
            raise unknown("key", key, KEYS)
        if not value:
            raise UsageError(f"{argument}: expected a value behind =")
        keys[key] = value
    if (both := set(keys) & set(WORDS)) and any(re.match(r"(-b|--bench)", word) for word in others):
        raise UsageError(f"{min(both)}= and --bench both choose what runs: leave out one of them")
    return keys, others


def _environment(keys: Mapping[str, str]) -> dict[str, str]:
    """The variables that the suite reads. Raises UsageError."""
    words = {key: runs.words(keys[key]) for key in WORDS if key in keys}
    found = {"FUSEBENCH_WORDS": json.dumps(words)} if words else {}
    if "threads" in keys:
        found["FUSEBENCH_THREADS"] = str(check_threads(keys["threads"]))
    if "path" in keys:
        broken: dict[str, UsageError] = {}
        roots = discovery.roots_of(runs.words(keys["path"]))
        discovery.check_roots(roots, {*discovery.find_kernels(roots, broken), *broken})
        found["FUSEBENCH_PATH"] = os.pathsep.join(map(str, roots[1:]))
    return found


def _patterns(words: Mapping[str, Any]) -> list[str]:
    """What asv's --bench takes for the cells that are chosen. Raises UsageError where there is none, or none that runs here."""
    this = suite.suite()
    chosen = {(c.case.kernel, c.id) for c in tracked(this.kernels, words, "cuda" if machine.gpu() else "cpu")}
    patterns = []
    for kernel, found in this.cells.items():
        own = [t for t in found if (kernel, t.cell.id) in chosen]
        for place, method in enumerate(METHODS):
            pairs = [f"{t.cell.label!r}, {t.cell.case.id!r}" for t in own if not t.refusals[place]]
            if pairs:
                name = re.escape(suite.benchmark_name(kernel, method))
                patterns.append(rf"^{name}\((?:{'|'.join(map(re.escape, pairs))})\)$")
    if not patterns:
        why = together(
            {(t.cell.case.kernel, t.cell.label): t.refusals[1] for own in this.cells.values() for t in own
             if (t.cell.case.kernel, t.cell.id) in chosen}
        )  # fmt: skip
        raise UsageError(f"nothing of that has a figure on this machine: {'; '.join(why)}")
    return patterns
