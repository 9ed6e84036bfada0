"""The command `inspect`: what the compiler made of the chosen cells. Nothing runs, and nothing is kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import cases, report
from fusebench.commands import app
from fusebench.configuration.request import Request
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.errors import UsageError
from fusebench.inspection import cells, expectation, stages, table, targets
from fusebench.inspection.cells import Inspected
from fusebench.inspection.compiled import TEXTS
from fusebench.terminal import console, while_it_is_read


def run_inspect(arguments: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 if all that can be compiled is, as it is expected; 1 if not; 2 for bad input, or without the
    disassembler."""
    return app.run_app("inspect", arguments, _run, lambda folder: 0, _complete)


def _complete(chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Mapping[str, Any]:
    """The configuration with its own keys checked, and the implementations that launch kernels of their own where none are named.
    Raises UsageError."""
    if chosen["resume"] is not None:
        raise UsageError(f"resume={chosen['resume']}: inspect keeps no run that could go on; out=DIR writes the stages")
    targets.target(str(chosen["arch"]))
    cases.positive("threshold", chosen["threshold"])
    if chosen["stage"] is not None:
        cases.check_name("stage", chosen["stage"], TEXTS)
    if chosen["opcodes"] and chosen["stage"] not in stages.COUNTED:
        raise UsageError(f"opcodes=true with stage={chosen['stage']}: expected stage=ptx or stage=sass")
    if chosen["expect"] is not None:
        expectation.parse(_text(chosen["expect"]))
    done = {**chosen, "inputs": "plain"}
    if chosen["implementation"] is None:
        asked = [kernels[k] for k in cases.chosen("kernel", chosen["kernel"], kernels)]
        own = dict.fromkeys(name for k in asked for name, i in k.implementations.items() if i.fused)
        done["implementation"] = list(own) or "all"
    return done


def _text(value: Any) -> str:
    """`expect=[spills=0,…]` as the text that it is without brackets."""
    return ",".join(map(str, cases.as_list(value)))


def _run(asked: Request, run_folder: Path, kernels: Mapping[str, Kernel], resumed: bool) -> int:
    """One job."""
    chosen = asked.chosen
    target = targets.target(str(chosen["arch"]))
    expect = None if chosen["expect"] is None else expectation.parse(_text(chosen["expect"]))
    found: list[Inspected] = []
    with report.progress(chosen["quiet"]) as bar:
        task = bar.add_task("compiling", total=len(asked.cells))

        def on_begin(cell: Cell) -> None:
            bar.update(task, description=f"{cell.label} {cell.case.id}: compiling")

        for one in cells.inspect(asked.cells, kernels, target, expect, on_begin):
            found.append(one)
            bar.advance(task)
    unmet = [said for one in found for said in one.unmet()]
    if chosen["out"] is not None:
        stages.save(found, Path(chosen["out"]))
    with while_it_is_read():  # the exit code is that of what was found, read or not
        if chosen["stage"] is not None:
            _show_stage(found, chosen["stage"], int(chosen["threshold"]) if chosen["opcodes"] else 0)
        elif not chosen["quiet"]:
            for _, group in itertools.groupby(found, key=lambda one: one.cell.case):
                table.show(list(group), target)
        _footer(found, unmet, chosen["out"])
    nothing = expect is not None and not any(one.launches for one in found)  # it cannot be as it is expected
    return int(nothing or bool(unmet) or any(one.failed for one in found))


def _show_stage(found: Sequence[Inspected], stage: str, threshold: int) -> None:
    """Prints a stage of every launch, or with a threshold how often its opcodes stand there."""
    out = console()
    for one in found:
        if one.reason:
            out.print(f"\n{one.cell.label}: {one.reason}", highlight=False, markup=False)
        for compiled in one.launches:
            title = f"\n{one.cell.case.kernel} {one.cell.case.id} {one.cell.label}: {compiled.name}"
            out.print(f"{title}, {stage}", highlight=False, markup=False)
            if stage != "sass" and stage not in compiled.texts:
                have = ", ".join(stages.of([one]))
                out.print(f"its compiler has no {stage}: it has {have}", highlight=False, markup=False)
                continue
            lines = stages.opcodes(compiled, stage, threshold) if threshold else stages.lines(compiled, stage)
            for line in lines:
                out.print(line, highlight=False, markup=False, soft_wrap=True)


def _footer(found: Sequence[Inspected], unmet: Sequence[str], folder: str | None) -> None:
    compiled, failed = sum(bool(one.launches) for one in found), sum(one.failed for one in found)
    checked = sum(len(one.expected) for one in found if one.launches)
    parts = [f"{compiled} of {len(found)} cells compiled"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{checked - len(unmet)} of {checked} expectations met"] if checked else []
    parts += [f"every stage is in {folder}/"] if folder else []
    console().print("\n" + ", ".join(parts), highlight=False, markup=False)
