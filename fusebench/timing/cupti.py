"""GPU kernel records from CUPTI, through torch.profiler, which sees the kernels of JAX and jax-triton in its process too.

A call is found in the stream of records by the flush kernels queued before it: `flushes` in a row of the marker's name and
about its duration, which no kernel under test is.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class LostRecords(RuntimeError):
    """A profile that lacks records or has them in another order: after long idling Torch's profiler loses its first ones."""


@dataclass(frozen=True)
class Kernel:
    """One kernel, copy or memset on the device; times in seconds on one clock."""

    name: str
    start: float
    end: float


def start() -> None:
    """Has the profiler get ready, which takes seconds once a process. Where it cannot, the first profile says so."""
    with contextlib.suppress(RuntimeError, ImportError):
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]):
            pass


def record(work: Callable[[], None]) -> list[Kernel]:
    """What the device did while `work` ran (it must wait for the device itself), in order of start.

    Raises LostRecords if CUPTI recorded nothing: another profiler may hold it.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
    kernels = [
        Kernel(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA
    ]
    if not kernels:
        raise LostRecords(
            "CUPTI recorded no kernel: is another profiler attached, or profiling forbidden on this machine?"
        )
    return sorted(kernels, key=lambda k: k.start)


@dataclass(frozen=True)
class Marker:
    """The back end's flush kernel: its name, and how long it takes in seconds."""

    name: str
    duration: float


@dataclass(frozen=True)
class Call:
    """The kernels of one call, and the span in seconds of the flushes before it."""

    kernels: list[Kernel]
    flushes: float

    @property
    def span(self) -> float:
        """Seconds from the first kernel's start to the last one's end."""
        return max(k.end for k in self.kernels) - min(k.start for k in self.kernels)


def marker(backend: Any) -> Marker:
    """The flush kernel, launched a few times."""

    def flushes() -> None:
        for _ in range(4):
            backend.flush()
        backend.wait(None)

    flushes()
    kernels = record(flushes)
    longest = max(kernels, key=lambda k: k.end - k.start)
    return Marker(longest.name, statistics.median(k.end - k.start for k in kernels if k.name == longest.name))


def split(kernels: Sequence[Kernel], marker: Marker, flushes: int, calls: int) -> list[Call]:
    """The calls: the kernels between one run of `flushes` markers and the next.

    Raises LostRecords if the number of runs is not `calls`, or a call left no kernel.
    """
    found: list[Call] = []
    run: list[Kernel] = []
    for kernel in kernels:
        if kernel.name == marker.name and kernel.end - kernel.start > marker.duration / 2:
            run.append(kernel)
            if len(run) == flushes:
                found.append(Call([], run[-1].end - run[0].start))
                run = []
        elif found and not run:
            found[-1].kernels.append(kernel)
        else:
            raise LostRecords(f"CUPTI's records are out of order: {kernel.name} stands among the flushes of a call")
    if len(found) != calls or not all(c.kernels for c in found):
        empty = sum(not c.kernels for c in found)
        raise LostRecords(f"CUPTI recorded {len(found)} calls, {empty} of them without a kernel; expected {calls}")
    return found


def busy(kernels: Sequence[Kernel]) -> float:
    """Seconds in which at least one of the kernels ran: the length of the union of their intervals."""
    total, end = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda k: k.start):
        total += max(0.0, kernel.end - max(kernel.start, end))
        end = max(end, kernel.end)
    return total
