"""What a worker records of the cell in hand: some calls on a line of time, one call line by line, one for its memory.

Each is a pass of its own, because what watches lines and memory slows a call down. Nothing here is a timing: a profiler costs every
launch a little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusebench.backends.events import COPY, KERNEL, RANGE, Event, Held, Mark
from fusebench.backends.protocol import Backend
from fusebench.timing import cupti
from fusebench.tracing import memory, syncs
from fusebench.tracing.syncs import Sync

WARM_CALLS, WARM_S = 20, 0.2  # as many calls as fit into these seconds, two at the least
FLUSHES, MOST_FLUSHES = 3, 50  # kernels that overwrite L2 before each call on a GPU
SLOWED = 4  # a call's launch below the profiler ÷ without it, at the most
ON_DEVICE = (KERNEL, COPY)

Call = Callable[..., Any]
Ring = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class TracePlan:
    """How many `calls` are traced, under which `name`, and whether they are `queued` behind the flushes of L2 or given to an idle
    device. `folders` are those of the implementations, whose lines are named."""

    name: str
    calls: int
    queued: bool
    folders: tuple[str, ...]


@dataclass(frozen=True)
class TracedCall:
    """One call, from its begin to the moment when its outputs are there; `events` are what began in between."""

    name: str
    begin: float
    end: float
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Traced:
    """The calls; the host's synchronisations in one call; bytes in use in one call beyond those held before it, on a line of time that
    begins with it, and their peak. `memory_of` says what was looked at: "allocator", "device" or "process"."""

    calls: tuple[TracedCall, ...] = ()
    syncs: tuple[Sync, ...] = ()
    memory: tuple[Held, ...] = ()
    peak_bytes: int | None = None
    memory_of: str = ""


def trace(backend: Backend, call: Call, ring: Ring, device: str, plan: TracePlan, peak: Callable[[], Any]) -> Traced:
    """Traces a call that was built. `peak` begins to watch memory, and what it returns gives the peak. Raises LostRecords where the
    profiler recorded nothing of a GPU."""
    host_s = _warm_up(backend, call, ring)
    marker = cupti.marker(backend) if device == "cuda" else None
    flushes = _flushes(marker, host_s)
    names = [f"{plan.name}, call {number + 1}" for number in range(plan.calls)]

    def work(mark: Mark) -> None:
        for number, name in enumerate(names):
            arguments = ring[number % len(ring)]
            backend.wait(arguments)
            for _ in range(flushes):
                backend.flush()
            if not plan.queued:
                backend.wait(None)
            with mark(name):
                output = call(*arguments)
                backend.wait(output)
            del output

    recording = backend.record(work)
    calls = tuple(_traced(r, recording.events, marker) for r in recording.events if r.kind == RANGE)
    if device == "cuda" and not any(e.kind in ON_DEVICE for c in calls for e in c.events):
        raise cupti.LostRecords("CUPTI recorded no kernel: is another profiler attached, or profiling forbidden here?")
    found = syncs.find(backend, call, ring[0], device, plan.folders)
    if recording.memory and calls:
        held, of = memory.during(recording.memory, calls[0].begin, calls[0].end), "allocator"
        return Traced(calls, found, held, max((h.bytes for h in held), default=0), of)
    read = peak()
    held, of = memory.watch(backend, call, ring[0])
    highest = max((h.bytes for h in held), default=0)
    told = read()
    return Traced(calls, found, held, highest if told is None else max(told, highest), of)


def count(backend: Backend, call: Call, ring: Ring) -> None:
    """Makes one call, warm, for whose kernels a program around this process reads hardware counters."""
    import ctypes

    _warm_up(backend, call, ring)
    arguments = ring[0]
    backend.wait(arguments)
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuProfilerStart()
    output = call(*arguments)
    backend.wait(output)
    driver.cuProfilerStop()


def _warm_up(backend: Backend, call: Call, ring: Ring) -> float:
    """Calls until nothing is new any more; the seconds of the calling thread that the last call took."""
    begin = time.perf_counter()
    host_s = 0.0
    for number in range(WARM_CALLS):
        arguments = ring[number % len(ring)]
        backend.wait(arguments)
        started = time.perf_counter()
        output = call(*arguments)
        host_s = time.perf_counter() - started
        backend.wait(output)
        del output
        if number and time.perf_counter() - begin > WARM_S:
            break
    return host_s


def _flushes(marker: cupti.Marker | None, host_s: float) -> int:
    """How many flushes outlast the launch of a call; none on a CPU."""
    if marker is None:
        return 0
    return min(MOST_FLUSHES, max(FLUSHES, math.ceil(SLOWED * host_s / marker.duration)))


def _traced(range_: Event, events: Sequence[Event], marker: cupti.Marker | None) -> TracedCall:
    """The call of that range, with all that began in it but the flushes before it."""
    inside = (e for e in events if e.kind != RANGE and range_.begin <= e.begin <= range_.end)
    own = tuple(e for e in inside if not (marker and e.name == marker.name and e.end - e.begin > marker.duration / 2))
    return TracedCall(range_.name, range_.begin, range_.end, own)
