"""How long a call takes: the same rule for every framework, on the GPU by CUPTI's kernel records, on the CPU by the wall.

Three figures answer three questions and are never mixed. `span` is the device's time from the first kernel's start to the
last one's end, with the call queued behind kernels that flush L2, so that the host's launch time does not enter. `busy` is
the union of the kernels' intervals. `host` is what the call costs the calling thread before it returns. On the CPU there is
only the synchronised wall clock.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fusebench.contract import Device

MIN_SAMPLES, MAX_SAMPLES = 5, 200
CHUNK = 20  # calls in one profile: few enough for CUPTI's buffers, many enough to pay for starting it
FLUSHES = 3  # kernels that overwrite L2 before each call, about 0.1 ms each on an H200
COPIES_BYTES = 4 * 2**30  # of inputs that wait for their calls at one time


class Backend(Protocol):
    """What timing needs of a back end; the modules in `backends/` offer it."""

    def wait(self, outputs: Any) -> None: ...
    def flush(self) -> None: ...


@dataclass(frozen=True)
class Ring:
    """The input sets of a cell. `ring[i]` are arguments that no call has seen: copies of set i's inputs at the places in
    `copied`, so that a call may overwrite or donate them, and cannot remember a result by where its input lies."""

    sets: Sequence[Sequence[Any]]
    copied: frozenset[int]
    copy: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.sets)

    def __getitem__(self, number: int) -> list[Any]:
        return [self.copy(a) if place in self.copied else a for place, a in enumerate(self.sets[number])]

    @property
    def copied_bytes(self) -> int:
        """Bytes that one call's copies take."""
        return sum(int(self.sets[0][place].nbytes) for place in self.copied)


@dataclass
class Samples:
    """Times in seconds, one a call. `host` is empty on the CPU, where it is the same as the time."""

    timer: str
    cache: str
    span: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    launches: int | None = None
    kernels: list[str] = field(default_factory=list)
    # of the last timed call on the ring's last set, never the one that the first call was checked on
    arguments: Sequence[Any] = ()
    output: Any = None

    def summary(self) -> dict[str, Any]:
        """What a record keeps: the raw samples and their quartiles, in seconds."""
        q1, median, q3 = quartiles(self.span)
        return {
            "timer": self.timer, "cache": self.cache, "unit": "s", "samples": self.span, "median": median, "q1": q1, "q3": q3,
            "busy": self.busy, "busy_median": quartiles(self.busy)[1] if self.busy else None,
            "host": self.host, "host_median": quartiles(self.host)[1] if self.host else None,
            "launches": self.launches, "kernels": self.kernels,
        }  # fmt: skip


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile, linearly interpolated."""
    q1, median, q3 = np.percentile(np.asarray(samples), [25, 50, 75])
    return float(q1), float(median), float(q3)


def measure(
    backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], device: Device, budget_s: float
) -> Samples:
    """Times `call` on the ring's input sets in turn until `budget_s` seconds or enough samples; to take a set from the ring is
    never timed.

    Raises RuntimeError if CUPTI recorded nothing or lost a call.
    """
    warm_up(backend, call, ring, budget_s / 4)
    if device.type == "cpu":
        return wall(backend, call, ring, budget_s)
    samples = Samples("cupti", "cold L2")
    samples.host = host(backend, call, ring, budget_s / 8)
    device_calls(backend, call, ring, budget_s, samples)
    return samples


def warm_up(backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], budget_s: float) -> None:
    """Calls for a time, not a count: a fresh jax-triton call is slow for its first 500 calls, which is still under a second."""
    end = time.perf_counter() + budget_s
    for i in itertools.count():
        backend.wait(call(*ring[i % len(ring)]))
        if time.perf_counter() >= end:
            return


def wall(backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], budget_s: float) -> Samples:
    """Synchronised wall clock of each call, for the CPU."""
    samples = Samples("wall", "warm")
    end = time.perf_counter() + budget_s
    for number in range(MAX_SAMPLES):
        arguments = ring[number % len(ring)]
        backend.wait(arguments)
        begin = time.perf_counter_ns()
        output = call(*arguments)
        backend.wait(output)
        samples.span.append((time.perf_counter_ns() - begin) / 1e9)
        if number % len(ring) == len(ring) - 1:
            samples.arguments, samples.output = arguments, output
        slow = samples.span[-1] > budget_s  # one call is the whole budget: three samples must do
        if time.perf_counter() >= end and len(samples.span) >= (3 if slow else MIN_SAMPLES):
            break
    return samples


def host(
    backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], budget_s: float
) -> list[float]:
    """Seconds of the calling thread a call, in runs of ten without waiting; the queue is emptied between the runs."""
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < 10 or (time.perf_counter() < end and len(times) < MAX_SAMPLES):
        output = None
        waiting = [ring[i % len(ring)] for i in range(_together(ring, 10))]
        backend.wait(waiting)
        for arguments in waiting:
            begin = time.perf_counter_ns()
            output = call(*arguments)
            times.append((time.perf_counter_ns() - begin) / 1e9)
        backend.wait(output)
    return times


def device_calls(
    backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], budget_s: float, samples: Samples
) -> None:
    """Fills `samples` from CUPTI's records of calls that are queued behind L2 flushes."""
    from fusebench import cupti

    marker, marker_s = cupti.marker(backend)
    # the flushes must outlast the launch of the call behind them
    flushes = max(FLUSHES, math.ceil(1.5 * statistics.median(samples.host) / marker_s))
    end = time.perf_counter() + budget_s
    per_call = 0.0
    while len(samples.span) < MAX_SAMPLES:
        count = CHUNK if not per_call else max(1, min(CHUNK, int((end - time.perf_counter()) / per_call)))
        count = _together(ring, count)
        begin = time.perf_counter()
        places = [number % len(ring) for number in range(len(samples.span), len(samples.span) + count)]
        waiting = [ring[place] for place in places]
        backend.wait(waiting)

        def chunk(places: list[int] = places, waiting: list[Sequence[Any]] = waiting) -> None:
            output = None
            for place, arguments in zip(places, waiting, strict=True):
                for _ in range(flushes):
                    backend.flush()
                output = call(*arguments)
                if place == len(ring) - 1:
                    samples.arguments, samples.output = arguments, output
            backend.wait(output)

        for kernels in cupti.split(cupti.record(chunk), marker, marker_s, flushes, count):
            samples.span.append(max(k.end for k in kernels) - min(k.start for k in kernels))
            samples.busy.append(cupti.busy(kernels))
            samples.launches, samples.kernels = len(kernels), [k.name for k in kernels]
        per_call = (time.perf_counter() - begin) / count
        if time.perf_counter() >= end and len(samples.span) >= MIN_SAMPLES:
            break


def _together(ring: Ring | Sequence[Sequence[Any]], count: int) -> int:
    """How many calls, `count` at most, can have their arguments made beforehand."""
    size = ring.copied_bytes if isinstance(ring, Ring) else 0
    return max(1, min(count, COPIES_BYTES // size)) if size else count
