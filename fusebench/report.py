"""What a user sees of a run: progress while it goes, a table per case, and where the wall time went."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fusebench.contract import PASSED, STATUSES
from fusebench.progress import Lines
from fusebench.records.record import BASELINE, Record
from fusebench.settings import Clock
from fusebench.terminal import WIDEST, console, counted, print_table
from fusebench.timing.summary import Clocks, Timing, percent, seconds, significant

COLOURS = {"ok": "green", "skipped": "dim"}
# a time so many times the best one, and so much beyond it, is marked: launches alone do not explain it
FAR, FAR_S = 10.0, 5e-4
UNKNOWN = 1.0  # half of the interval ÷ the median: beyond it the samples were stalled, whatever the target is
# Columns by their importance, the least first: those are left out where the terminal is narrow
LEAST_OF_TIMES = ("launches", "peak", "saved", "wall", "best", "host", "GB/s", "TFLOP/s", "yardstick")
LEAST_OF_PARITY = ("max |error|", "± budget", "worst at", "expected", "got")


def progress(quiet: bool = False) -> Progress | Lines:
    """Cells done, the cell in hand and its phase, time left; on stderr, wherever stdout goes. Where stderr is no terminal, or a dumb
    one, a line from time to time; where it is to be `quiet`, nothing."""
    out = Console(stderr=True)
    if not quiet and (not sys.stderr.isatty() or out.is_dumb_terminal):
        return Lines()
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=out, disable=quiet, transient=True, redirect_stdout=False,
    )  # fmt: skip


def ended(record: Record, number: int, of: int) -> str:
    """One line of a cell that has ended."""
    said = f"{record.status}  {' '.join(dict.fromkeys((record.kernel, record.case.id, record.label)))}"
    if record.timing and record.status == "ok":
        said += f"  {seconds(record.timing.median)} ± {around(record.timing)}"
    elif record.reason:
        said += f"  {record.reason}"
    elif _ratio(record):
        said += f"  error/budget {_ratio(record)}"
    return f"[{number}/{of}] {said}"


def show(records: Sequence[Record], timed: bool = True, published: bool = False) -> None:
    """Prints a block per case, in the order of the records: the table, then the cells without figures and why; with `published`
    what the authors of the kernel published beside it."""
    out = console()
    for (kernel, case_id, kind, _), group in itertools.groupby(
        records, key=lambda r: (r.kernel, r.case.id, r.cell.inputs, r.cell.seed)
    ):
        rows = list(group)
        sizes = " ".join(f"{d}={n}" for d, n in rows[0].case.sizes.items())
        device = next((r.device.name for r in rows if r.device.name), rows[0].device.type)
        hard = "" if kind == "plain" else f"  {kind} inputs"
        how = next((f"  {r.timing.regime}, {r.timing.cache} caches" for r in rows if r.timing), "")
        out.print(f"\n[bold]{kernel}  {case_id}[/]  {sizes}{hard}  on {device}{how}", highlight=False)
        # an output of another dtype or shape has no element to compare: its reason says all. So it does of a cell that is wrong on hard
        # inputs alone, whose figures are those of plain ones
        shown = [r for r in rows if (r.timing if timed else _compared(r))]
        if shown and timed:
            _print_times(out, shown, published)
        elif shown:
            _print_parity(out, shown)
        if timed:
            for line in [*notes(shown), *(_published(rows) if published else ())]:
                out.print(line, highlight=False)
        if others := [r for r in rows if r not in shown or r.reason]:
            print_reasons(out, others, with_error=timed)
            for reproduce in dict.fromkeys(r.reproduce for r in others if r.reproduce):
                out.print(
                    f"[dim]again: {escape(reproduce)}[/]", highlight=False, soft_wrap=True
                )  # one line, to be copied
        if unseen := sorted({r.parity.first.unseen for r in rows if r.parity.first and r.parity.first.unseen}):
            out.print("not every row was compared: " + "; ".join(unseen), highlight=False, markup=False)
        for note in dict.fromkeys(r.build.config_note for r in rows if r.build and r.build.config_note):
            labels = ", ".join(r.label for r in rows if r.build and r.build.config_note == note)
            out.print(f"config  {labels}: {note}", highlight=False, markup=False)
        for r in rows:
            if r.retried:
                out.print(f"tried again in a fresh process  {r.label}: {r.retried}", highlight=False, markup=False)
            if r.changed:
                out.print(f"changed its process  {r.label}: {'; '.join(r.changed)}", highlight=False, markup=False)
            if spread := r.parity.nondeterministic:
                differs = f"{spread.elements} elements, by up to {spread.max_abs:.2g}"
                calls = f"{spread.calls} of {spread.of} calls on the same inputs differ from the first"
                out.print(f"nondeterministic  {r.label}: {calls}, in up to {differs}", highlight=False, markup=False)


def _print_times(out: Console, rows: Sequence[Record], published: bool = False) -> None:
    baseline = next(
        (r.timing.median for r in rows if r.cell.implementation == BASELINE and r.status == "ok" and r.timing), None
    )
    figures = [_figures(r, baseline) | ({"published": _published_time(r)} if published else {}) for r in rows]
    headings = [h for h in figures[0] if any(f[h] for f in figures)]  # a CPU has no launches, a copy no FLOPs
    # an implausible time is no time: it stands in the record, not beside times that can be believed
    cells = [
        (_name(r), coloured(r.status), *(figure[h] if r.status == "ok" else "" for h in headings), _ratio(r))
        for r, figure in zip(rows, figures, strict=True)
    ]
    print_table(out, ("implementation", "status"), [*headings, "error/budget"], cells, LEAST_OF_TIMES)


def _figures(record: Record, baseline: float | None) -> dict[str, str]:
    """What the columns of a timed cell say, empty where there is nothing to say."""
    timing, rates = record.timing, record.rates
    assert timing and rates
    return {
        heading(record.device.type, timing.regime): seconds(timing.median),
        "±": around(timing),
        "wall": _wall(timing.clocks) if timing.regime == "queued" else "",
        **(_memory(record) if record.case.mode != "forward" else {}),
        "host": seconds(timing.host_median) if timing.host_median else "",
        "launches": str(timing.launches or ""),
        "TFLOP/s": significant(rates.tflops) if rates.tflops else "",
        "GB/s": significant(rates.gbps) if rates.gbps else "",
        "best": seconds(rates.best_s) if rates.best_s else "",
        "yardstick": f"{rates.yardstick_share:.0%}" if rates.yardstick_share else "",
        f"× {BASELINE}": f"{baseline / timing.median:.2f}" if baseline else "",
    }


def _memory(record: Record) -> dict[str, str]:
    """What the residuals keep, and what is taken at the most beyond the inputs."""
    build = record.build
    known = {} if build is None else {"saved": build.saved_bytes, "peak": build.peak_memory_bytes}
    return {name: "" if size is None else f"{significant(size / 1e6)} MB" for name, size in known.items()}


def _published_time(record: Record) -> str:
    """What was published of this implementation; of several methods, one after the other."""
    return " / ".join(seconds(figure.time_s) for figure in record.published if figure.label)


def _published(rows: Sequence[Record]) -> list[str]:
    """A line of where and how a case's published figures were measured, and all of them: also of cells that have no time here."""
    known = dict.fromkeys(figure for r in rows for figure in r.published)
    sources: dict[str, list[str]] = {}
    for f in known:
        source = f"on {f.device or 'a device that is not said'}, by {f.method or 'a method that is not said'}"
        sources.setdefault(source, []).append(f"{f.label or 'an implementation that is not said'} {seconds(f.time_s)}")
    return (
        ["published " + "; ".join(f"{source}: {', '.join(said)}" for source, said in sources.items())] if known else []
    )


def _compared(record: Record) -> bool:
    """Whether there are figures of the outputs that the status follows from."""
    worst = record.parity.worst
    return worst is not None and not worst.problem and (record.status in PASSED or not worst.ok)


def _print_parity(out: Console, rows: Sequence[Record]) -> None:
    cells = [
        (
            _name(r), coloured(r.status), _ratio(r), f"{p.max_abs:.2g}", escape(f"{p.name}{list(p.index)}"), f"{p.got:.7g}",
            f"{p.expected:.7g}", f"{p.budget:.2g}",
        )
        for r in rows if (p := r.parity.worst)
    ]  # fmt: skip
    right = ("error/budget", "max |error|", "worst at", "got", "expected", "± budget")
    print_table(out, ("implementation", "status"), right, cells, LEAST_OF_PARITY)


def print_reasons(out: Console, rows: Sequence[Record], with_error: bool) -> None:
    """The cells without figures, those with one reason together: in columns where these fit, else as text."""
    table = Table.grid(padding=(0, 2))
    together: dict[tuple[str, str], list[str]] = {}
    for r in rows:
        error = f" (error/budget {_ratio(r)})" if with_error and _ratio(r) and r.status == "skipped" else ""
        together.setdefault((coloured(r.status), str(r.reason)), []).append(r.label + error)
    for (status, reason), labels in together.items():
        table.add_row(status, escape(reason), ", ".join(labels))
    if out.measure(table, options=out.options.update(width=WIDEST)).maximum <= out.width:
        out.print(table)
        return
    for (status, reason), labels in together.items():
        out.print(f"{status}  {escape(reason)}  {', '.join(labels)}", highlight=False)


def footer(records: Sequence[Record], clock: Clock, wall_s: float, folder: object) -> None:
    """One line of counts, one of where the wall time went, one of where the records are."""
    out = console()
    counts = [f"{n} {status}" for status in STATUSES if (n := sum(r.status == status for r in records))]
    out.print(f"{counted(len(records), 'cell')}: {', '.join(counts) or 'none'}")
    wall_time(clock, wall_s)
    failed = sum(bool(r.traceback) for r in records)
    tracebacks = f" (the field traceback of {counted(failed, 'cell')} has where it failed)" if failed else ""
    if records:  # without one there is no file
        out.print(f"records: {folder}/records.jsonl{tracebacks}", soft_wrap=True, markup=False)


def wall_time(clock: Clock, wall_s: float) -> None:
    """One line of where the wall time of a run went."""
    phases = asdict(clock)
    phases["other"] = max(0.0, wall_s - sum(phases.values()))
    console().print(
        f"wall time {wall_s:.1f} s: "
        + ", ".join(f"{name.replace('_', '-')} {spent:.1f} s" for name, spent in phases.items())
    )


def heading(device: str, regime: str) -> str:
    """What the times of a regime are: only a queued call's is the GPU's alone."""
    if device == "cpu":
        return "CPU time"
    return {"queued": "GPU time", "isolated": "wall time", "sustained": "time a call"}[regime]


def around(timing: Timing) -> str:
    """Half the 95 % interval of the median as a share of it, with a mark where that is more than was asked for."""
    around = timing.uncertainty
    return ("?" if around is None else percent(around)) + mark(around, timing.target_missed)


def mark(uncertainty: float | None, target_missed: bool) -> str:
    """Behind an interval that is wider than was asked for; where nothing was asked for, than a median that says anything."""
    return "!" if target_missed or (uncertainty or 0) > UNKNOWN else ""


def _wall(clocks: Clocks | None) -> str:
    """The second clock: the wall time of isolated calls, where it can say something about the GPU's."""
    if clocks is None:
        return ""
    return seconds(clocks.wall) if clocks.says == "agrees" else "n/a"


def notes(rows: Sequence[Record]) -> list[str]:
    """What else must be known of the times of a table."""
    timed = [(r.label, r.timing) for r in rows if r.status == "ok" and r.timing]
    lines = []
    if missed := [timing for _, timing in timed if timing.target_missed]:
        lines.append(f"! the median is not known to ± {missed[0].target:.1%} yet: a larger time_s takes more samples")
    if stalled := [label for label, timing in timed if not timing.target_missed and mark(timing.uncertainty, False)]:
        lines.append(
            f"! the median is not known, samples were stalled: {', '.join(stalled)}; measure again on an idle machine"
        )
    if busy := [(label, timing) for label, timing in timed if timing.machine_busy]:
        shares = ", ".join(f"{label} {timing.waiting:.0%}" for label, timing in busy)
        lines.append(f"machine busy: {busy[0][1].remedy} helps; samples in which threads waited for a core: {shares}")
    if capped := [label for label, timing in timed if timing.state.power_capped]:
        lines.append(f"at the power limit of the card: {', '.join(capped)}")
    slow = {r.label: share for r in rows if r.status == "ok" and r.timing and (share := _beyond(r))}
    if slow:
        these = ", ".join(f"{label} {share:.0f} ×" for label, share in slow.items())
        lines.append(f"far beyond the best time by the yardsticks, slow or measured wrongly: {these}")
    if discarded := {label: timing.discarded for label, timing in timed if timing.discarded}:
        lines.append(
            "samples discarded while the card was slowed down: " + ", ".join(f"{k} {n}" for k, n in discarded.items())
        )
    return lines


def _beyond(record: Record) -> float | None:
    """How many times the best time it took, where that is far more, and more than launches explain."""
    if not (record.timing and record.rates and record.rates.best_s):
        return None
    took, best = record.timing.median, record.rates.best_s
    return took / best if took > FAR * best and took - best > FAR_S else None


def _name(record: Record) -> str:
    """The label, and what it computes if that is only a part of the kernel."""
    part = record.computes.replace("_", " ")
    return f"{record.label} ({part} alone)" if part else record.label


def coloured(status: str) -> str:
    """A cell's status in rich's markup."""
    return f"[{COLOURS.get(status, 'bold red')}]{status}[/]"


def _ratio(record: Record) -> str:
    """The largest error of the first output, a later one and a timed one, in budgets."""
    return "" if record.parity.ratio is None else f"{record.parity.ratio:.2g}"
