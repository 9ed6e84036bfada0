"""What `fusebench diff` finds: a line for each output of two cells, in differences.jsonl, in a table and in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich.markup import escape

from fusebench.comparison.difference import Difference, Place, difference
from fusebench.comparison.outputs import Outputs, Own
from fusebench.comparison.sides import case_name
from fusebench.contract import Cell
from fusebench.records.record import SCHEMA
from fusebench.terminal import console, print_table

FILE = "differences.jsonl"
BAD = ("wrong", "failed", "crashed", "timeout")
LEFT = ("A", "B", "output")
RIGHT = (
    "max |A-B|", "at", "A there", "B there", "max relative", "relative at", "differ", "A error", "A error/budget", "B error",
    "B error/budget",
)  # fmt: skip


@dataclass(frozen=True)
class SideOfRow:
    """One side of a comparison of outputs: the case with its inputs, the label, the commit if its kernels are of one, its status with the reason, the
    output's dtype, and how far that is from float64."""

    case: str
    label: str
    commit: str | None
    status: str
    reason: str | None
    dtype: str = ""
    own: Own | None = None


@dataclass(frozen=True)
class ComparedOutput:
    """One output of two cells of a kernel. `difference` is None where a side has none, or another shape than the other, which
    `reason` says."""

    kernel: str
    a: SideOfRow
    b: SideOfRow
    output: str = ""
    shape: tuple[int, ...] = ()
    difference: Difference | None = None
    reason: str = ""
    schema: int = SCHEMA

    @property
    def fails(self) -> bool:
        """Whether a side is wrong or did not come to its end."""
        return any(side.status in BAD for side in (self.a, self.b))


def rows(cells: Sequence[Cell], found: Sequence[Outputs], commits: Sequence[str | None]) -> list[ComparedOutput]:
    """A row for each output of both cells, or one that says why there is none."""
    kernel, count = cells[0].case.kernel, min(len(one.arrays) for one in found)

    def side(n: int, output: int | None) -> SideOfRow:
        cell, one = cells[n], found[n]
        plain = SideOfRow(case_name(cell), cell.label, commits[n], one.record.status, one.record.reason)
        if output is None or output >= len(one.arrays):
            return plain
        named = {"dtype": one.arrays[output].dtype.name, "own": one.own[output]}
        return SideOfRow(**{**vars(plain), **named})

    if not count:
        return [ComparedOutput(kernel, side(0, None), side(1, None), reason="no output of both sides")]
    made = []
    for n in range(count):
        a, b = (one.arrays[n] for one in found)
        name = found[0].names[n] if n < len(found[0].names) else f"output {n}"
        if a.shape != b.shape:
            reason = f"A is {list(a.shape)}, B {list(b.shape)}: no element of one is the other's"
            made.append(ComparedOutput(kernel, side(0, n), side(1, n), name, reason=reason))
        else:
            made.append(ComparedOutput(kernel, side(0, n), side(1, n), name, a.shape, difference(a, b)))
    return made


def show(found: Sequence[ComparedOutput]) -> None:
    """Prints a table for each kernel and pair of cases, and below it what is wrong with a side."""
    out = console()
    groups: dict[tuple[str, str, str], list[ComparedOutput]] = {}
    for row in found:
        groups.setdefault((row.kernel, row.a.case, row.b.case), []).append(row)
    for (kernel, a, b), group in groups.items():
        shapes = list(dict.fromkeys(str(list(row.shape)) for row in group if row.difference))
        cases = a if a == b else f"{a} | {b}"
        out.print(f"\n[bold]{kernel}  {escape(cases)}[/]  {escape(' '.join(shapes))}", highlight=False)
        if compared := [row for row in group if row.difference]:
            least = ("relative at", "A there", "B there", "at")
            print_table(out, LEFT, RIGHT, [_cells(row) for row in compared], least)
        said: dict[str, None] = {}
        for row in group:
            if row.reason and row.a.status == row.b.status == "ok":
                said[f"{row.a.label} | {row.b.label}: {row.reason}"] = None
            for side in (s for s in (row.a, row.b) if s.status != "ok"):
                said[f"{_named(side)}: {side.status}: {side.reason}"] = None
        for line in said:
            out.print(line, highlight=False, markup=False)


def _cells(row: ComparedOutput) -> list[str]:
    found = row.difference
    assert found
    at, names = found.at, [escape(_named(side)) for side in (row.a, row.b)]
    if not found.differing:
        first = ["0", "", "", "", "0", ""]
    else:
        first = [f"{found.absolute:.3g}", _index(at), *_values(at), f"{found.relative:.3g}", _index(found.relative_at)]
    own = [text for side in (row.a, row.b) for text in _own(side.own)]
    share = f"{found.differing}/{found.elements}"
    return [*names, escape(row.output), *first, share, *own]


def _named(side: SideOfRow) -> str:
    return side.label + (f" @{side.commit[:10]}" if side.commit else "")


def _index(place: Place | None) -> str:
    return escape(str(list(place.index))) if place else ""


def _values(place: Place | None) -> list[str]:
    return [f"{place.a:.9g}", f"{place.b:.9g}"] if place else ["", ""]


def _own(own: Own | None) -> list[str]:
    return [f"{own.error:.3g}", f"{own.ratio:.2f}"] if own else ["", ""]


def frame(found: Sequence[ComparedOutput]) -> pa.Table:
    """All rows as a table, with a column for each figure."""
    return pa.Table.from_pylist([_columns(row) for row in found])


def _columns(row: ComparedOutput) -> dict[str, Any]:
    made: dict[str, Any] = {"kernel": row.kernel, "output": row.output, "shape": "×".join(map(str, row.shape))}
    for name, side in (("a", row.a), ("b", row.b)):
        made |= {
            name: side.label, f"{name}_case": side.case, f"{name}_commit": side.commit, f"{name}_status": side.status,
            f"{name}_reason": side.reason, f"{name}_dtype": side.dtype, f"{name}_error": side.own and side.own.error,
            f"{name}_error_budget": side.own and side.own.ratio, f"{name}_checked": side.own and side.own.checked,
        }  # fmt: skip
    one = row.difference
    made |= {"max_abs": one and one.absolute, "max_rel": one and one.relative}
    for name, place in (("abs", one and one.at), ("rel", one and one.relative_at)):
        made |= {
            f"{name}_at": ", ".join(map(str, place.index)) if place else None,
            f"{name}_a": place.a if place else None, f"{name}_b": place.b if place else None,
        }  # fmt: skip
    return made | {"differing": one and one.differing, "elements": one and one.elements, "reason": row.reason}
