"""What a call's time went to: its kernels by name, on a CPU its operators, with the gaps and overlaps between them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusebench.backends.events import COPY, KERNEL, OPERATOR, Detail, Event, ordered
from fusebench.tracing.calls import TracedCall

OF_LAUNCHES = ("grid", "block", "registers", "shared_bytes")


@dataclass(frozen=True)
class KernelTotal:
    """The kernels of one name in one call: how many there are, their seconds together; `gap_s` in which nothing ran right before them, and `overlap_s` in
    which another one ran beside them. `launch` is the longest one's grid, block, registers and shared memory, `counters` are those of
    the hardware (counters.py)."""

    name: str
    kind: str
    count: int
    time_s: float
    gap_s: float
    overlap_s: float
    launch: Mapping[str, Detail] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """A call on the device, on a CPU in its operators: from the first begin to the last end; of these seconds those in which something
    ran, nothing did, and two or more did at once. The longest gap is that before `gap_before`."""

    span_s: float
    busy_s: float
    gaps_s: float
    overlap_s: float
    launches: int
    longest_gap_s: float = 0.0
    gap_before: str = ""


def summed(call: TracedCall, device: str) -> tuple[Span, list[KernelTotal]] | None:
    """The sums and the rows of a call, or None where it has no event that counts: on a GPU kernels and copies, on a CPU the framework's
    operators, of nested ones the time that each has to itself."""
    kinds = (KERNEL, COPY) if device == "cuda" else (OPERATOR,)
    events = [e for e in call.events if e.kind in kinds]
    if not events:
        return None
    if device == "cuda":
        return span(events), rows(events)
    tracks = itertools.groupby(sorted(events, key=lambda e: e.track), key=lambda e: e.track)
    pieces = [piece for _, own in tracks for piece in innermost(list(own))]
    counts = Counter(e.name for e in events)
    return replace(span(pieces), launches=len(events)), [replace(r, count=counts[r.name]) for r in rows(pieces)]


def innermost(events: Sequence[Event]) -> list[Event]:
    """Nested events of one thread cut into pieces, each with the name of the one that is innermost there."""
    pieces: list[Event] = []
    open_: list[Event] = []
    at = 0.0

    def until(end: float) -> None:
        nonlocal at
        if open_ and end > at:
            if pieces and pieces[-1].end == at and pieces[-1].name == open_[-1].name:
                pieces[-1] = replace(pieces[-1], end=end)
            else:
                pieces.append(replace(open_[-1], begin=at, end=end))
        at = max(at, end)

    for event in ordered(events):
        while open_ and open_[-1].end <= event.begin:
            until(open_[-1].end)
            open_.pop()
        until(event.begin)
        open_.append(event)
    while open_:
        until(open_[-1].end)
        open_.pop()
    return pieces


def span(events: Sequence[Event]) -> Span:
    """The sums over all events of a call. Raises ValueError without any."""
    if not events:
        raise ValueError("a call without an event has no span")
    inside = ordered(events)
    begin, end = inside[0].begin, max(e.end for e in inside)
    gaps = _gaps(inside)
    longest = max(range(len(inside)), key=lambda n: gaps[n])
    busy, overlap = 0.0, 0.0
    for length, running in _slices(inside):
        busy += length if running else 0.0
        overlap += length if len(running) > 1 else 0.0
    before = inside[longest].name if gaps[longest] else ""
    return Span(end - begin, busy, sum(gaps), overlap, len(inside), gaps[longest], before)


def rows(events: Sequence[Event]) -> list[KernelTotal]:
    """A row for each name, the one that took longest first."""
    inside = ordered(events)
    gaps, overlaps = _gaps(inside), _overlaps(inside)
    found: dict[tuple[str, str], list[int]] = {}
    for number, event in enumerate(inside):
        found.setdefault((event.name, event.kind), []).append(number)
    table = []
    for (name, kind), numbers in found.items():
        own = [inside[n] for n in numbers]
        longest = max(own, key=lambda e: e.end - e.begin)
        launch = {key: longest.details[key] for key in OF_LAUNCHES if key in longest.details}
        time_s = sum(e.end - e.begin for e in own)
        table.append(
            KernelTotal(
                name, kind, len(own), time_s, sum(gaps[n] for n in numbers), sum(overlaps[n] for n in numbers), launch
            )
        )
    return sorted(table, key=lambda row: -row.time_s)


def _gaps(inside: Sequence[Event]) -> list[float]:
    """For each event the seconds before it in which none of the earlier ones ran any more."""
    gaps, end = [], inside[0].begin if inside else 0.0
    for event in inside:
        gaps.append(max(0.0, event.begin - end))
        end = max(end, event.end)
    return gaps


def _slices(inside: Sequence[Event]) -> Iterator[tuple[float, list[int]]]:
    """The seconds between two edges of events, and the numbers of the events that ran in them."""
    edges = sorted(
        [(e.begin, 1, n) for n, e in enumerate(inside)]
        + [(e.end, 0, n) for n, e in enumerate(inside) if e.end > e.begin]
    )
    running: list[int] = []
    for (at, begins, number), (then, _, _) in itertools.pairwise(edges):
        if not begins:
            running.remove(number)
        elif inside[number].end > inside[number].begin:
            running.append(number)
        yield then - at, running


def _overlaps(inside: Sequence[Event]) -> list[float]:
    """For each event the seconds in which at least one other ran."""
    overlaps = [0.0] * len(inside)
    for length, running in _slices(inside):
        if len(running) > 1:
            for number in running:
                overlaps[number] += length
    return overlaps
