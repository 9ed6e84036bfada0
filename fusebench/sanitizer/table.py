"""What a user sees of a run: for each case, a row a cell and a column a tool, then the findings, and what did not run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.markup import escape

from fusebench.contract import PASSED
from fusebench.report import coloured
from fusebench.sanitizer.check import Check, Finding
from fusebench.sanitizer.tool import Sanitizer
from fusebench.terminal import console, counted, print_table

LEAST = ("severity", "count", "of")
LONGEST = 40  # characters of a kernel's name: template arguments beyond them stand in the record


def show(checks: Sequence[Check], tools: Sequence[str]) -> None:
    """Prints a block per case, in the order of the checks."""
    out = console()
    for (kernel, case_id, kind, _), group in itertools.groupby(
        checks, key=lambda c: (c.record.kernel, c.cell.case.id, c.cell.inputs, c.cell.seed)
    ):
        those = list(group)
        case = those[0].cell.case
        sizes = " ".join(f"{d}={n}" for d, n in case.sizes.items())
        device = next((c.record.device.name for c in those if c.record.device.name), those[0].record.device.type)
        hard = "" if kind == "plain" else f"  {kind} inputs"
        out.print(f"\n[bold]{kernel}  {case_id}[/]  {sizes}{hard}  on {device}", highlight=False)
        rows: dict[str, dict[str, Check]] = {}
        for check in those:
            rows.setdefault(check.cell.label, {})[check.tool] = check
        shown = {label: row for label, row in rows.items() if any(c.status != "skipped" for c in row.values())}
        if shown:
            cells = [(label, *(_outcome(row[t]) if t in row else "" for t in tools)) for label, row in shown.items()]
            print_table(out, ("implementation", *tools), (), cells)
        if found := [_row(c, f) for c in those for f in c.findings]:
            headings = ("found in", "tool", "of", "severity", "what", "kernel", "place")
            print_table(out, headings, ("count",), found, LEAST)
        for line in dict.fromkeys(_remarks(those)):
            out.print(line, highlight=False, soft_wrap=True)


def _remarks(checks: Sequence[Check]) -> list[str]:
    """Why a check did not pass, what its tool said of itself, and where to see more."""
    lines = [
        f"{coloured(c.status)}  {escape(f'{c.cell.label} {c.tool}: {c.record.reason}')}"
        for c in checks if c.status not in PASSED
    ]  # fmt: skip
    skipped: dict[str, dict[str, None]] = {}
    for check in checks:
        if check.status == "skipped":
            skipped.setdefault(str(check.record.reason), {})[check.cell.label] = None
    lines += [f"{coloured('skipped')}  {escape(why)}  {escape(', '.join(cells))}" for why, cells in skipped.items()]
    lines += [escape(f"{c.cell.label} {c.tool} says: {note}") for c in checks for note in c.notes]
    again: dict[str, list[str]] = {}
    for check in checks:
        if check.record.reproduce:
            again.setdefault(check.record.reproduce, []).append(check.tool)
    for command, tools in again.items():
        listed = tools[0] if len(tools) == 1 else f"'[{','.join(tools)}]'"
        lines.append(f"[dim]again: {escape(command)} tools={listed}[/]")
    return lines


def _outcome(check: Check) -> str:
    """`clean`, or what is not."""
    parts = [] if check.status == "ok" else [coloured(check.status)]
    if ours := [f for f in check.ours if not f.kind.startswith("wrong under")]:
        parts.append(f"[bold red]{counted(len(ours), 'finding')}[/]")
    for of in ("library", "host"):
        if others := [f for f in check.findings if f.of == of]:
            parts.append(f"[yellow]{len(others)} of the {of}[/]")
    if check.status == "ok" and not ours:
        parts.insert(0, "[green]clean[/]")
    return ", ".join(parts)


def _row(check: Check, found: Finding) -> tuple[str, ...]:
    kernel = found.kernel if len(found.kernel) <= LONGEST else f"{found.kernel.split('<')[0]}<…>"
    place = " and ".join(dict.fromkeys([found.place, *found.others]))
    return (
        escape(check.cell.label), check.tool, found.of, found.severity, escape(found.kind), escape(kernel), escape(place),
        str(found.count),
    )  # fmt: skip


def footer(checks: Sequence[Check], sanitizer: Sanitizer, wall_s: float, folder: object) -> None:
    """One line of counts, one of the tool, one of where the records are."""
    out = console()
    clean = sum(c.status == "ok" and not c.ours for c in checks)
    counts = [f"{clean} clean"] if clean else []
    with_findings = sum(c.status == "ok" and bool(c.ours) for c in checks)
    counts += [f"{with_findings} with findings"] if with_findings else []
    statuses = dict.fromkeys(c.status for c in checks if c.status != "ok")
    counts += [f"{sum(c.status == status for c in checks)} {status}" for status in statuses]
    cells = len({c.cell.id for c in checks})
    out.print(
        f"{counted(len(checks), 'check')} of {counted(cells, 'cell')}: {', '.join(counts) or 'none'}", highlight=False
    )
    out.print(f"{sanitizer.path} {sanitizer.version}, {wall_s:.1f} s", highlight=False, soft_wrap=True, markup=False)
    logs = f", {folder}/logs/" if any(c.log for c in checks) else ""
    if checks:  # without one there is no file
        out.print(f"records: {folder}/records.jsonl{logs}", highlight=False, soft_wrap=True, markup=False)
