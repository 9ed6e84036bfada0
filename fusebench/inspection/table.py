"""The table of a case: what each launch of each implementation takes, and its instructions by class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from fusebench.inspection import figures, lines
from fusebench.inspection.cells import Inspected
from fusebench.inspection.compiled import Compiled
from fusebench.inspection.opcodes import CLASSES, by_class
from fusebench.inspection.targets import Target
from fusebench.terminal import console, print_table

LEFT = ("implementation", "launch", "of")
RIGHT = ("blocks", "threads", "registers", "spills", "shared bytes", "instructions", *CLASSES)


def show(found: Sequence[Inspected], target: Target) -> None:
    """Prints what was compiled of one case, which implementations have the same code, why others have none, and what is not as
    expected."""
    case, out = found[0].cell.case, console()
    sizes = " ".join(f"{dimension}={size}" for dimension, size in case.sizes.items())
    out.print(f"\n[bold]{case.kernel}  {escape(case.id)}[/]  {sizes}  {target.arch}", highlight=False)
    rows = [row for one in found for number in range(len(one.launches)) for row in _rows(one, number)]
    if rows:
        print_table(out, LEFT, RIGHT, rows, ("blocks", "threads", "other", "branch", "barrier"))
    for names in same_code(found):
        out.print(f"same machine code: {', '.join(names)}", highlight=False, markup=False)
    reasons: dict[str, list[str]] = {}
    for one in found:
        if one.reason:
            reasons.setdefault(one.reason, []).append(one.cell.label)
        for said in one.unmet():
            out.print(f"{one.cell.label}: {said}", highlight=False, markup=False)
    for reason, names in reasons.items():
        out.print(f"{', '.join(names)}: {reason}", highlight=False, markup=False)


def show_lines(found: Sequence[Inspected], threshold: int, roots: Sequence[Path]) -> None:
    """Prints for each launch what its lines of source became; those with fewer instructions than the threshold together."""
    out = console()
    for one in found:
        for compiled in one.launches:
            loop = compiled.code.hottest_loop()
            counted = lines.counted(compiled.code.instructions, loop, threshold)
            rows = [[escape(cell) for cell in lines.columns(line, roots)] for line in counted]
            where = "of the loop" if loop else "of the whole"
            out.print(f"{one.cell.label}: {compiled.name} by line, classes {where}", highlight=False, markup=False)
            print_table(out, ("line", "source"), ("whole", "loop", *CLASSES), rows, ("other", "branch", "barrier"))


def same_code(found: Sequence[Inspected]) -> list[list[str]]:
    """The labels of cells whose launches are the same machine code, where there are several."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        if one.launches:
            labels.setdefault(tuple(c.digest for c in one.launches), []).append(one.cell.label)
    return [names for names in labels.values() if len(names) > 1]


def short(name: str) -> str:
    """A kernel's name without its template's arguments."""
    return name.split("<")[0]


def _rows(one: Inspected, number: int) -> list[list[str]]:
    compiled = one.launches[number]
    whole = figures.row(compiled)
    columns = [str(whole[name]) for name in ("registers", "spills", "shared_bytes", "instructions")]
    label = one.cell.label if number == 0 else ""
    launched = "×".join(map(str, compiled.grid)), str(compiled.threads)
    classes = [str(count) for count in by_class(compiled.code.instructions).values()]
    return [[label, short(compiled.name), "whole", *launched, *columns, *classes], *_loop(compiled)]


def _loop(compiled: Compiled) -> list[list[str]]:
    loop = compiled.code.hottest_loop()
    if not loop:
        return []
    classes = [str(count) for count in by_class(loop).values()]
    return [["", "", "loop", "", "", "", str(figures.spills(loop)), "", str(len(loop)), *classes]]
