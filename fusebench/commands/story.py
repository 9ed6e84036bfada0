"""The table of a story: a row a step, in the order in which it is told, from the records of its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape

from fusebench.configuration.story import Step, Story
from fusebench.contract import PASSED
from fusebench.discovery import Kernel
from fusebench.records.record import Record
from fusebench.report import around, coloured, heading, notes, print_reasons
from fusebench.terminal import console, print_table
from fusebench.timing.summary import seconds, significant

LEFT = ("step", "implementation", "kernel", "case", "status")
LEAST = ("kernel", "status", "launches", "saved", "implementation", "host", "±")
SHARES = (
    "shares are of the step's time: by how much each part makes the call longer, in the order of the model; what runs in one "
    "piece has one share"
)
LESS = "; below 0, the longer call was the faster one: by noise, or because a compiler joins more"


def show(story: Story, records: Sequence[Record], kernels: Mapping[str, Kernel]) -> None:
    """Prints the table and why steps have no time; nothing of cells that are not on record yet."""
    out, found = console(), {r.id: r for r in records}
    told = [step for step in story.steps if step.cell.id in found]
    timed = [step for step in told if _time(found.get(step.cell.id)) is not None]
    if timed:
        rows = [_row(story, step, found, kernels) for step in timed]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        used = [name for name in columns if any(row.get(name) for row in rows)]
        same = [name for name in ("kernel", "status") if len({row[name] for row in rows}) == 1]
        left = [name for name in LEFT if name in used and name not in same]
        right = [name for name in used if name not in LEFT]
        first = found[timed[0].cell.id]
        kept = "  ".join(rows[0][name] for name in ("kernel",) if name in same)
        how = f"  {first.timing.regime}, {first.timing.cache} caches" if first.timing else ""
        out.print(f"\n[bold]{kept}[/]  on {first.device.name or first.device.type}{how}", highlight=False)
        print_table(out, left, right, [[row.get(name, "") for name in (*left, *right)] for row in rows], LEAST)
        for line in notes([found[step.cell.id] for step in timed]):
            out.print(line, highlight=False)
        if any(row.get(name) for row in rows for name in story.shares):
            less = any(row.get(name, "").startswith("-") for row in rows for name in story.shares)
            out.print(SHARES + LESS * less, highlight=False, soft_wrap=True)
    for step in told:
        record = found[step.cell.id]
        if step not in timed:
            said = f"{coloured(record.status)}  {escape(step.name)}  {escape(record.label)}  {escape(record.case.id)}  {escape(str(record.reason))}"
            out.print(said, highlight=False, soft_wrap=True)
    parts = {c.id: found[c.id] for step in story.steps for c in step.parts.values() if c.id in found}
    if wrong := [r for r in parts.values() if r.status not in PASSED]:
        print_reasons(out, wrong, with_error=False)


def shares(story: Story, step: Step, times: Mapping[str, float], whole: float) -> dict[str, float | str]:
    """What each name of `story.shares` has of the time `whole` of a step, given the times of its call up to some of the parts.

    A part has what its call takes beyond that of the call before. Parts that were not measured apart stand together, in the share
    of the last one, whose name the others have instead of a figure. All figures sum to 1; without any time of a part there are none.
    """
    name_of = {part: name for name, parts in story.shares.items() for part in parts}
    found: dict[str, float | str] = {}
    if not times:
        return found
    before, together = 0.0, []
    for part, time in [*((part, times.get(part)) for part in step.parts), (story.last, whole)]:
        together.append(part)
        if time is None:
            continue
        own = name_of[part]
        known = found.get(own, 0.0)
        found[own] = (0.0 if isinstance(known, str) else known) + (time - before) / whole
        for other in together:
            found.setdefault(name_of[other], own)
        before, together = time, []
    return found


def _row(story: Story, step: Step, found: Mapping[str, Record], kernels: Mapping[str, Kernel]) -> dict[str, str]:
    """The texts of a step by column; its cell has a time."""
    record = found[step.cell.id]
    timing, build, case = record.timing, record.build, record.case
    assert timing
    rows, whole = case.sizes[kernels[record.kernel].mathematics.batch], timing.median
    first = _first(story, step, found)
    saved, peak = (None, None) if build is None else (build.saved_bytes, build.peak_memory_bytes)
    known = {part: time for part, cell in step.parts.items() if (time := _time(found.get(cell.id))) is not None}
    parts = shares(story, step, known, whole)
    return {
        "step": escape(step.name),
        "implementation": escape(record.label),
        "kernel": record.kernel,
        "case": escape(case.id),
        "status": record.status,
        heading(record.device.type, timing.regime): seconds(whole),
        "±": around(timing),
        "samples/s": significant(rows / whole),
        "host": seconds(timing.host_median) if timing.host_median else "",
        "launches": str(timing.launches or ""),
        "saved": _bytes(saved),
        "peak memory": _bytes(peak),
        **{name: _share(parts.get(name)) for name in story.shares},
        f"× {escape(story.steps[0].name)}": f"{first / whole:.2f}" if first else "",
    }


def _first(story: Story, step: Step, found: Mapping[str, Record]) -> float | None:
    """The time of the story's first step in the dtype, mode, … of this one; None where it has none."""
    name = story.steps[0].name
    same = [s for s in story.steps if s.name == name and s.round == step.round]
    return _time(found.get(same[0].cell.id)) if same else None


def _time(record: Record | None) -> float | None:
    return record.timing.median if record and record.status == "ok" and record.timing else None


def _share(value: float | str | None) -> str:
    return "" if value is None else f"in {value}" if isinstance(value, str) else f"{value:.1%}"


def _bytes(count: int | None) -> str:
    return "" if count is None else f"{significant(count / 1e6)} MB"
