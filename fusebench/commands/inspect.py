"""The command `inspect`: what the compiler made of the chosen cells. Nothing runs, and nothing is kept."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import cases, folder, report
from fusebench.commands import app
from fusebench.configuration import command_line
from fusebench.configuration.request import Request
from fusebench.contract import Cell
from fusebench.discovery import Implementation, Kernel
from fusebench.errors import UsageError
from fusebench.inspection import cells, expectation, generated, lines, stages, table, targets, traced, versus
from fusebench.inspection.cells import Inspected
from fusebench.inspection.compiled import Ask
from fusebench.inspection.expectation import Expectation
from fusebench.inspection.isolated import Compiler
from fusebench.terminal import console, counted, while_it_is_read
from fusebench.workers.stages import TEXTS, NotInspected, compile_stages

OF_FRAMEWORKS = (*traced.STAGES, *generated.STAGES)


def run_inspect(arguments: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 if all that can be compiled is, as it is expected; 1 if not, or if nothing can; 2 for bad input, or without the
    disassembler."""
    arguments = command_line.with_quotes(arguments, ("vs",))
    return app.run_app("inspect", arguments, _run, lambda folder: 0, _complete)


def _complete(chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Mapping[str, Any]:
    """The configuration with its own keys checked, and the implementations that launch kernels of their own where none are named.
    Raises UsageError."""
    targets.target(str(chosen["arch"]))
    cases.positive("threshold", chosen["threshold"])
    if chosen["stage"] is not None:
        cases.check_name("stage", chosen["stage"], (*TEXTS, *OF_FRAMEWORKS))
    if chosen["opcodes"] and chosen["stage"] not in stages.COUNTED:
        raise UsageError(f"opcodes=true with stage={chosen['stage'] or ''}: expected stage=ptx or stage=sass")
    if chosen["lines"] and chosen["stage"] not in (None, *stages.COUNTED):
        raise UsageError(f"lines=true with stage={chosen['stage']}: expected stage=ptx, stage=sass or none")
    if chosen["out"] is not None:
        folder.check_folder("out", str(chosen["out"]))
    if chosen["expect"] is not None:
        expectation.parse(_text(chosen["expect"]))
    done = {**chosen, "inputs": "plain"}
    if chosen["implementation"] is None:
        asked = [kernels[k] for k in cases.chosen("kernel", chosen["kernel"], kernels)]
        every = [i for k in asked for i in k.implementations.values()]
        # a broken file may be of any kind: left out, it would be missed by nobody
        own = list(dict.fromkeys(i.name for i in every if i.broken or _shows(i, chosen["stage"])))
        done["implementation"] = own or "all"
    given = [key for key in ("expect", "vs") if chosen[key] is not None]
    if given and chosen["stage"] in OF_FRAMEWORKS:
        raise UsageError(f"{given[0]}= with stage={chosen['stage']}: it is for what is compiled ahead of time")
    if chosen["vs"] is not None:
        if also := next((key for key in ("opcodes", "lines") if chosen[key]), ""):
            raise UsageError(
                f"{also}=true with vs={chosen['vs']}: two sides are shown by figures and opcodes; leave {also}= away"
            )
        versus.check(chosen["vs"], done, kernels)
        targets.target(str(versus.other(done, chosen["vs"])[0]["arch"]))
    return done


def _shows(implementation: Implementation, stage: str | None) -> bool:
    """Whether an implementation is among those that are meant where none are named."""
    if stage in traced.STAGES:
        return implementation.backend == "jax"
    if stage in generated.STAGES:
        return implementation.name.startswith(generated.COMPILES)
    return implementation.fused


def _text(value: Any) -> str:
    """`expect=[spills=0,…]` as the text that it is without brackets."""
    return ",".join(map(str, cases.as_list(value)))


def _run(asked: Request, run_folder: Path, kernels: Mapping[str, Kernel], resumed: bool) -> int:
    """One job."""
    chosen = asked.chosen
    target = targets.target(str(chosen["arch"]))
    expect = None if chosen["expect"] is None else expectation.parse(_text(chosen["expect"]))
    if chosen["stage"] in OF_FRAMEWORKS:
        _check_framework(asked, kernels)
        if chosen["out"] is None:
            return _show_traced(asked, kernels)
    roots = [Path(root) for root in asked.roots]
    found = _inspect(asked.cells, kernels, roots, chosen, expect)
    expectation.check_opcodes([e for one in found for e in one.expected], [c for one in found for c in one.launches])
    sides = [found] if chosen["vs"] is None else [found, _other_side(asked, kernels)]
    unmet = [said for one in found for said in one.unmet()]
    if chosen["out"] is not None:
        for said in stages.save(found, kernels, target, Path(chosen["out"])):
            print(f"not in {chosen['out']}/: {said}", file=sys.stderr)
    if chosen["stage"] in OF_FRAMEWORKS:
        return _show_traced(asked, kernels)
    with while_it_is_read():  # the exit code is that of what was found, read or not
        if chosen["vs"] is not None:
            _show_beside(asked, *sides)
        elif chosen["stage"] is not None:
            _show_stage(found, asked)
        elif not chosen["quiet"]:
            for _, group in itertools.groupby(found, key=lambda one: one.cell.case):
                table.show(cells_of := list(group), target)
                if chosen["lines"]:
                    table.show_lines(cells_of, int(chosen["threshold"]), roots)
        _footer(list(itertools.chain(*sides)), unmet, chosen["out"])
    if nothing := next(filter(None, (_nothing(side, chosen["stage"]) for side in sides)), ""):
        print(f"nothing to show: {nothing}", file=sys.stderr)
    return int(bool(nothing or unmet) or any(one.failed for one in itertools.chain(*sides)))


def _nothing(found: Sequence[Inspected], stage: str | None) -> str:
    """Why there is nothing of what was asked for, or ""."""
    have = stages.of(found)
    if not have:
        return "no cell was compiled"
    return "" if stage is None or stage in have else f"no launch has the stage {stage}; there are {', '.join(have)}"


def _inspect(
    asked: Sequence[Cell],
    kernels: Mapping[str, Kernel],
    roots: Sequence[Path],
    chosen: Mapping[str, Any],
    expect: Sequence[Expectation] | None,
) -> list[Inspected]:
    """The cells, compiled behind a progress bar, in a process of their own unless worker=inline."""
    found, ptx = list[Inspected](), chosen["stage"] == "ptx" or chosen["out"] is not None
    with contextlib.ExitStack() as stack, report.progress(chosen["quiet"]) as bar:
        ask: Ask = compile_stages
        if not chosen["worker"]["inline"]:
            ask = stack.enter_context(Compiler(roots, float(chosen["timeout_s"]))).ask
        task = bar.add_task("compiling", total=len(asked))

        def on_begin(cell: Cell) -> None:
            bar.update(task, description=f"{cell.label} {cell.case.id}: compiling")

        target, fits = targets.target(str(chosen["arch"])), bool(chosen["fits"])
        for one in cells.inspect(asked, kernels, target, expect, on_begin, ask, ptx, fits):
            found.append(one)
            bar.advance(task)
    return found


def _other_side(asked: Request, kernels: Mapping[str, Kernel]) -> list[Inspected]:
    """The cells of the other side, compiled. Raises UsageError."""
    chosen, revision = versus.other(asked.chosen, asked.chosen["vs"])

    def inspect(theirs: Mapping[str, Kernel], roots: Sequence[Path]) -> list[Inspected]:
        return _inspect(cases.select_cells(theirs, chosen), theirs, roots, chosen, ())

    return versus.with_kernels(revision, kernels, [Path(root) for root in asked.roots], inspect)


def _show_beside(asked: Request, found: Sequence[Inspected], others: Sequence[Inspected]) -> None:
    """Prints how the other side differs, launch by launch. Raises UsageError where one has more cells."""
    text, out = asked.chosen["vs"], console()
    chosen, revision = versus.other(asked.chosen, text)
    for a, b in versus.pairs(found, others, text):
        ours, theirs = (f"{x.cell.case.kernel} {x.cell.case.id} {x.cell.label}" for x in (a, b))
        if chosen["arch"] != asked.chosen["arch"]:
            ours, theirs = f"{ours} {asked.chosen['arch']}", f"{theirs} {chosen['arch']}"
        out.print(f"\nA  {ours}\nB  {theirs}{f' @{revision}' if revision else ''}", highlight=False, markup=False)
        for reason in (f"{x.cell.label}: {x.reason}" for x in (a, b) if x.reason):
            out.print(reason, highlight=False, markup=False)
        if a.launches and b.launches and len(a.launches) != len(b.launches):
            count = f"A makes {counted(len(a.launches), 'launch')}, B {len(b.launches)}: the last ones are shown"
            out.print(count, highlight=False, markup=False)
        alike = min(len(a.launches), len(b.launches))  # the last launch is the main one
        for one, two in zip(a.launches[len(a.launches) - alike :], b.launches[len(b.launches) - alike :], strict=True):
            out.print(f"{one.name} | {two.name}", highlight=False, markup=False)
            for line in versus.lines(one, two, asked.chosen["stage"]):
                out.print(line, highlight=False, markup=False, soft_wrap=True)


def _check_framework(asked: Request, kernels: Mapping[str, Kernel]) -> None:
    """Raises UsageError where no cell has the stage of a framework's own compiler, because of its framework or of its mode."""
    stage = asked.chosen["stage"]
    backend = "jax" if stage in traced.STAGES else "torch"
    of = {cell.case.kernel: kernels[cell.case.kernel].implementations for cell in asked.cells}
    meant = [of[cell.case.kernel][cell.implementation] for cell in asked.cells]
    if not any(one.broken or one.backend == backend for one in meant):
        named = ", ".join(dict.fromkeys(cell.implementation for cell in asked.cells))
        there = {i.name: None for found in of.values() for i in found.values() if _shows(i, stage)}
        said = f"it is a stage of {'JAX' if backend == 'jax' else 'torch.compile'}: expected {', '.join(there) or 'another'}"
        raise UsageError(f"stage={stage} with implementation={named}: {said}")
    if all(cell.case.mode != "forward" for cell in asked.cells):
        raise UsageError(f"stage={stage} with mode={asked.cells[0].case.mode}: expected mode=forward")


def _show_traced(asked: Request, kernels: Mapping[str, Kernel]) -> int:
    """Prints what a framework's own compiler made of every cell, and returns the exit code."""
    out, failed, shown, stage = console(), False, 0, asked.chosen["stage"]
    with while_it_is_read():
        for cell in asked.cells:
            kernel = kernels[cell.case.kernel]
            out.print(f"\n{kernel.name} {cell.case.id} {cell.label}: {stage}", highlight=False, markup=False)
            try:
                trace = traced.trace if stage in traced.STAGES else generated.trace
                text = trace(cell, kernel.implementations[cell.implementation], kernel, stage)
                shown += 1
            except NotInspected as error:
                text, failed = str(error), failed or error.failed
            out.print(text, highlight=False, markup=False, soft_wrap=True)
    return int(failed or not shown)


def _show_stage(found: Sequence[Inspected], asked: Request) -> None:
    """Prints a stage of every launch, by the lines that it is of if they are asked for, or how often its opcodes stand there."""
    out, chosen, roots = console(), asked.chosen, [Path(root) for root in asked.roots]
    stage = str(chosen["stage"])
    for one in found:
        if one.reason:
            out.print(f"\n{one.cell.label}: {one.reason}", highlight=False, markup=False)
        for compiled in one.launches:
            title = f"\n{one.cell.case.kernel} {one.cell.case.id} {one.cell.label}: {compiled.name}"
            out.print(f"{title}, {stage}", highlight=False, markup=False)
            if said := stages.lacking(compiled, stage):
                out.print(said, highlight=False, markup=False)
                continue
            if chosen["opcodes"]:
                shown = stages.opcodes(compiled, stage, int(chosen["threshold"]))
            elif chosen["lines"]:
                shown = lines.annotated(stages.instructions(compiled, stage), roots)
            else:
                shown = stages.lines(compiled, stage)
            for line in shown:
                out.print(line, highlight=False, markup=False, soft_wrap=True)


def _footer(found: Sequence[Inspected], unmet: Sequence[str], folder: str | None) -> None:
    compiled, failed = sum(bool(one.launches) for one in found), sum(one.failed for one in found)
    checked = sum(len(one.expected) for one in found if one.launches)
    parts = [f"{compiled} of {counted(len(found), 'cell')} compiled"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{checked - len(unmet)} of {counted(checked, 'expectation')} met"] if checked else []
    parts += [f"every stage is in {folder}/"] if folder and compiled else []
    console().print("\n" + ", ".join(parts), highlight=False, markup=False)
