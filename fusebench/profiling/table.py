"""What a user sees of a profile: for each cell its call in one line, then a row a kernel, the host's waits, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from fusebench.profiling import counters, trace
from fusebench.profiling.kernels import KernelTotal, Span
from fusebench.profiling.run import Profile
from fusebench.records.store import FILE
from fusebench.report import coloured
from fusebench.terminal import console, counted, print_table
from fusebench.timing.summary import seconds

MOST_ROWS, LEAST_SHARE = 12, 0.0005  # of the span; the rest stands together in the last row
LONGEST = 56  # characters of a kernel's name: the whole of it is in the record
LEAST = ("grid", "block", "shared", "registers", "stalled on", "overlap")
MEMORY_OF = {
    "allocator": "by the framework's allocations",
    "device": "by the device's count, looked at while it ran",
    "process": "by the process's resident pages, looked at while it ran",
}


def show(profiles: Sequence[Profile], device: str) -> None:
    """Prints a block for each cell."""
    out = console()
    for profile in (p for p in profiles if p.record.status != "skipped"):
        record, case = profile.record, profile.cell.case
        sizes = " ".join(f"{d}={n}" for d, n in case.sizes.items())
        title = f"\n[bold]{record.kernel}  {case.id}  {profile.cell.label}[/]  {sizes}  on {record.device.name or record.device.type}"
        out.print(title, highlight=False)
        if record.status != "ok":
            out.print(f"{coloured(record.status)}  {escape(str(record.reason))}", highlight=False, soft_wrap=True)
            continue
        if profile.span:
            out.print(_span(profile, profile.span, device), highlight=False, markup=False, soft_wrap=True)
            _rows(profile, profile.span, device)
            if profile.counted_elsewhere:
                names = ", ".join(profile.counted_elsewhere)
                out.print(f"under ncu other kernels were chosen, and counted: {names}", highlight=False, markup=False)
        else:
            out.print("its framework names no operators: the trace has the calls alone", highlight=False)
        _syncs(profile, device)
        out.print(_memory(profile), highlight=False, markup=False, soft_wrap=True)
    skipped: dict[str, dict[str, None]] = {}
    for profile in profiles:
        if profile.record.status == "skipped":
            skipped.setdefault(str(profile.record.reason), {})[profile.cell.label] = None
    if skipped:
        out.print()
    for reason, labels in skipped.items():
        out.print(
            f"{coloured('skipped')}  {escape(reason)}  {escape(', '.join(labels))}", highlight=False, soft_wrap=True
        )


def footer(profiles: Sequence[Profile], none: Sequence[str], wall_s: float, folder: Path, drawn: str) -> None:
    """One line of counts, one for each reason why there are no counters, and where the files are."""
    out = console()
    statuses = dict.fromkeys(p.record.status for p in profiles)
    counts = [f"{sum(p.record.status == status for p in profiles)} {status}" for status in statuses]
    out.print(f"\n{counted(len(profiles), 'cell')}: {', '.join(counts) or 'none'}, {wall_s:.1f} s", highlight=False)
    for reason in dict.fromkeys(none):
        out.print(f"no hardware counters: {reason}", highlight=False, soft_wrap=True, markup=False)
    traced = any(p.record.status == "ok" for p in profiles)
    kept = f"records: {folder}/{FILE}" if profiles else ""  # without one there is no file
    lines = [f"trace, for ui.perfetto.dev: {folder}/{trace.FILE}" if traced else "", drawn, kept]
    for line in filter(None, lines):
        out.print(line, highlight=False, soft_wrap=True, markup=False)


def _span(profile: Profile, span: Span, device: str) -> str:
    """`call 2 of 3: 1.61 ms: busy 1.6 ms in 3 launches, 12.3 µs in gaps (the longest 6.4 µs, before gelu), no overlaps`."""
    what = "launch" if device == "cuda" else "operator"
    many = span.launches > 1
    parts = [f"busy {seconds(span.busy_s)} in {span.launches} {what}{('es' if device == 'cuda' else 's') * many}"]
    gaps = f"{seconds(span.gaps_s)} in gaps"
    if span.gap_before:
        gaps += f" (the longest {seconds(span.longest_gap_s)}, before {_short(span.gap_before, 40)})"
    parts += [
        gaps if span.gaps_s else "no gaps",
        f"{seconds(span.overlap_s)} overlapped" if span.overlap_s else "no overlaps",
    ]
    if (share := profile.dram_share) is not None:
        parts.append(f"DRAM ÷ compulsory bytes {share:.2f}")
    return f"call {profile.shown + 1} of {len(profile.spans)}: {seconds(span.span_s)}: {', '.join(parts)}"


def _rows(profile: Profile, span: Span, device: str) -> None:
    count = sum(r.time_s >= LEAST_SHARE * span.span_s for r in profile.rows[:MOST_ROWS])
    count += len(profile.rows) == count + 1  # a single one has a name
    shown, rest = list(profile.rows[:count]), profile.rows[count:]
    if rest:
        shown.append(
            KernelTotal(
                f"{len(rest)} others", "", sum(r.count for r in rest), sum(r.time_s for r in rest), sum(r.gap_s for r in rest),
                sum(r.overlap_s for r in rest),
            )
        )  # fmt: skip
    columns = {
        "count": [str(r.count) for r in shown],
        "time": [seconds(r.time_s) for r in shown],
        "share": [f"{r.time_s / span.span_s:.0%}" if span.span_s else "" for r in shown],
        "gap before": [seconds(r.gap_s) if r.gap_s else "" for r in shown],
        "overlap": [seconds(r.overlap_s) if r.overlap_s else "" for r in shown],
    }
    if device == "cuda":
        columns |= {
            "grid": [str(r.launch.get("grid", "")) for r in shown],
            "block": [str(r.launch.get("block", "")) for r in shown],
            "registers": [str(r.launch.get("registers", "")) for r in shown],
            "shared": [_bytes(float(b)) if (b := r.launch.get("shared_bytes")) else "" for r in shown],
        }
    if any(r.counters for r in shown):
        moved = profile.record.work.moved_bytes if profile.record.work else None
        columns |= {
            "DRAM ÷ compulsory": [_figure(r, counters.DRAM, moved) for r in shown],
            "tensor %": [_figure(r, counters.TENSOR, 1) for r in shown],
            "occupancy %": [_figure(r, counters.OCCUPANCY, 1) for r in shown],
            "stalled on": [counters.stalls(r.counters) for r in shown],
        }
    heading = "kernel" if device == "cuda" else "operator, without what it calls"
    names = [escape(_short(r.name, LONGEST)) for r in shown]
    print_table(console(), (heading,), tuple(columns), list(zip(names, *columns.values(), strict=True)), LEAST)


def _figure(row: KernelTotal, name: str, unit: int | None) -> str:
    if name not in row.counters or not unit:
        return ""
    value = row.counters[name] / unit
    return f"{value:.2f}" if name == counters.DRAM else f"{value:.1f}"


def _syncs(profile: Profile, device: str) -> None:
    out = console()
    if not profile.syncs:
        if device == "cuda":
            out.print("the host waits for nothing within a call", highlight=False)
        return
    rows = [(s.place or "?", escape(s.line), s.what, str(s.count), seconds(s.seconds)) for s in profile.syncs]
    print_table(out, ("the host waits at", "line", "in"), ("count", "time"), rows, ("line",))


def _memory(profile: Profile) -> str:
    if profile.peak_bytes is None:
        return "memory: its peak is not known"
    return f"memory: {_bytes(profile.peak_bytes)} at the peak of a call beyond what was held before it, {MEMORY_OF[profile.memory_of]}"


def _bytes(count: float) -> str:
    """In B, KiB, MiB or GiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 2**10:.3g} KiB" if count >= 2**10 else f"{count:.0f} B"


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
