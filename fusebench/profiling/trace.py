"""The trace of a run in Chrome's JSON format, which Perfetto opens: a process for each cell, a track for each thread and stream in it,
ranges named by cell, and memory as a counter."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench.backends.events import COPY, KERNEL, Event, Held
from fusebench.tracing.calls import Traced

FILE = "trace.json.gz"
APART_S = 1e-3  # between two cells, which stand one after the other
CALLS, MEMORY = "calls", "memory in use beyond the inputs"
Json = dict[str, Any]


def write(cells: Sequence[tuple[str, Traced]], file: Path) -> None:
    """Writes the trace of cells, each with its name."""
    with gzip.open(file, "wt", encoding="utf-8") as opened:
        json.dump({"displayTimeUnit": "ns", "traceEvents": events(cells)}, opened, ensure_ascii=False)


def events(cells: Sequence[tuple[str, Traced]]) -> list[Json]:
    """What stands in the file: names of processes and tracks first, then everything by its time in µs."""
    names, timed = list[Json](), list[Json]()
    begin_s = 0.0
    for pid, (name, traced) in enumerate(cells, 1):
        if not traced.calls:
            continue
        shift = begin_s - min(c.begin for c in traced.calls)
        names.append(_named("process_name", pid, 0, name))
        for tid, (track, own) in enumerate(_tracks(traced).items()):
            names.append(_named("thread_name", pid, tid, track))
            names.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
            timed += [_complete(event, pid, tid, shift) for event in own]
        timed += _counted(traced.memory, pid, shift + traced.calls[0].begin)
        begin_s = shift + max(max((e.end for e in c.events), default=c.end) for c in traced.calls) + APART_S
    return names + sorted(timed, key=lambda e: (e["ts"], -e.get("dur", 0.0)))


def _tracks(traced: Traced) -> Mapping[str, list[Event]]:
    """The events by the track that shows them: the calls, the streams, the threads. Two that overlap without one within the other,
    which a track cannot show, stand in two."""
    found: dict[str, list[Event]] = {CALLS: [Event(c.name, "range", c.begin, c.end) for c in traced.calls]}
    inside = [e for c in traced.calls for e in c.events]
    for event in sorted(inside, key=lambda e: (e.kind not in (KERNEL, COPY), e.track)):
        found.setdefault(event.track, []).append(event)
    return dict(_in_lanes(found))


def _in_lanes(tracks: Mapping[str, Sequence[Event]]) -> Iterator[tuple[str, list[Event]]]:
    for track, events in tracks.items():
        lanes: list[list[Event]] = []
        ends: list[list[float]] = []  # of what is still open in each lane
        for event in sorted(events, key=lambda e: (e.begin, -e.end)):
            number = next((n for n, own in enumerate(ends) if _fits(own, event)), len(lanes))
            if number == len(lanes):
                lanes.append([])
                ends.append([])
            lanes[number].append(event)
            ends[number].append(event.end)
        for number, lane in enumerate(lanes, 1):
            yield (track if number == 1 else f"{track} ({number})"), lane


def _fits(ends: list[float], event: Event) -> bool:
    """Whether the event stands behind or within all that is open in a lane; what ended before it is open no more."""
    while ends and ends[-1] <= event.begin:
        ends.pop()
    return not ends or event.end <= ends[-1]


def _named(what: str, pid: int, tid: int, name: str) -> Json:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(event: Event, pid: int, tid: int, shift: float) -> Json:
    begin, end = (round((shift + t) * 1e6, 3) for t in (event.begin, event.end))
    return {
        "ph": "X", "name": event.name, "cat": event.kind, "pid": pid, "tid": tid, "ts": begin, "dur": round(end - begin, 3),
        "args": dict(event.details),
    }  # fmt: skip


def _counted(memory: Sequence[Held], pid: int, begin: float) -> list[Json]:
    return [
        {"ph": "C", "name": MEMORY, "pid": pid, "tid": 0, "ts": round((begin + h.at) * 1e6, 3), "args": {"bytes": h.bytes}}
        for h in memory
    ]  # fmt: skip
