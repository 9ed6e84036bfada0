"""The command `sanitize`: cells under compute-sanitizer's tools, each in a process of its own."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import cases, report
from fusebench.commands import app
from fusebench.configuration import values
from fusebench.configuration.request import Request
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.errors import StorageError, UsageError
from fusebench.records import store
from fusebench.sanitizer import run, table, tool
from fusebench.sanitizer.check import Check, check_id
from fusebench.terminal import counted, while_it_is_read


def run_sanitize(arguments: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 if every cell is right under each tool, or skipped, and nothing is found in a kernel of its
    implementation; 1 if not; 2 for bad input, or without compute-sanitizer or a GPU; 130 interrupted."""
    return app.run_app("sanitize", arguments, _run, _code_of, _complete)


def _complete(chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Mapping[str, Any]:
    """The configuration with the tools by name, and the implementations that launch kernels of their own where none are named.
    Raises UsageError."""
    if not chosen["worker"]["inline"]:
        raise UsageError("worker=process: sanitize runs each cell inline, in a process under the tool; worker=inline")
    named = cases.chosen("tool", chosen["tools"], tool.TOOLS)
    done = {**chosen, "tools": named, "jobs": cases.positive("jobs", chosen["jobs"])}
    if chosen["implementation"] is None:
        asked = [kernels[k] for k in cases.chosen("kernel", chosen["kernel"], kernels)]
        own = dict.fromkeys(name for k in asked for name, i in k.implementations.items() if i.fused)
        if asked and not own:
            names = ", ".join(k.name for k in asked)
            raise UsageError(f"no implementation of {names} launches kernels of its own: implementation= names another")
        done["implementation"] = list(own) or "all"
    return done


def _run(asked: Request, run_folder: Path, kernels: Mapping[str, Kernel], resumed: bool) -> int:
    """One job, in its folder. Raises UsageError before anything has run, and StorageError when the disk takes no more."""
    begin = time.perf_counter()
    if values.resolve_device(asked.chosen["device"]) != "cuda":
        raise UsageError(f"sanitize needs an NVIDIA GPU, and there is none here by device={asked.chosen['device']}")
    sanitizer = tool.find(asked.chosen["sanitizer"])
    with app.in_folder(asked, run_folder, kernels, resumed) as this:
        latest = [c for c in store.latest(run_folder, Check) if c.status not in asked.retry]
        finished = app.unchanged(this, latest, lambda check: check.record)
        interrupted = _check(run.Sweep(this, asked, sanitizer, asked.chosen["jobs"]), finished)
    order = {cell.id: number for number, cell in enumerate(asked.cells)}
    tools = list(asked.chosen["tools"])
    finished.sort(key=lambda c: (order.get(c.cell.id, len(order)), tools.index(c.tool)))
    with while_it_is_read():
        if not asked.chosen.get("quiet", False):
            table.show(finished, tools)
        table.footer(finished, sanitizer, time.perf_counter() - begin, run_folder)
    if interrupted:
        return app.interrupted(interrupted)
    return _code_of(run_folder)


def _check(sweep: run.Sweep, finished: list[Check]) -> str:
    """Adds the checks that are not on record yet; says how it goes on where it was interrupted, else "". Raises StorageError."""
    wanted = run.pairs(sweep.asked.cells, sweep.asked.chosen["tools"])
    done = {c.id for c in finished}
    with report.progress(sweep.asked.chosen.get("quiet", False)) as bar:
        task = bar.add_task("starting", total=len(wanted), completed=len(done))

        def on_begin(cell: Cell, name: str) -> None:
            bar.update(task, description=f"{cell.label} {cell.case.id}: {name}")

        sweep.on_begin = on_begin
        try:
            with contextlib.closing(run.run(sweep, [p for p in wanted if check_id(p[1], p[2]) not in done])) as checks:
                for check in checks:
                    finished.append(check)
                    bar.advance(task)
                    if sweep.asked.chosen.get("verbose"):
                        said = f"{check.status}  {check.cell.label} {check.cell.case.id}: {check.tool}"
                        print(f"[{len(finished)}/{len(wanted)}] {said}", file=sys.stderr, flush=True)
        except (KeyboardInterrupt, StorageError) as error:
            bar.stop()
            kept = f"{len(store.latest(sweep.this.folder, Check))} of {counted(len(wanted), 'check')}"
            return app.goes_on(error, kept, sweep.this.folder, sweep.asked.command)
    return ""


def _code_of(run_folder: Path) -> int:
    """0 if the last record of every check in the folder passed, else 1."""
    return 0 if all(check.passed for check in store.latest(run_folder, Check)) else 1
