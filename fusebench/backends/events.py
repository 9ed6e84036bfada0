"""What a back end records while it works: events on a line of time, and the memory that is in use. Times are seconds since the
recording began."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

KERNEL, COPY = "kernel", "copy"  # of the device
OPERATOR, API, RANGE = "operator", "api", "range"  # of the host: the framework's, the driver's, ours
Detail = str | int | float
Mark = Callable[[str], AbstractContextManager[object]]
Work = Callable[[Mark], None]


@dataclass(frozen=True)
class Event:
    """What ran from `begin` to `end`. `kind` is one of the five above; `track` is the stream or the thread that it ran in; `details`
    are what the profiler knows beside it, such as a kernel's grid, block and registers."""

    name: str
    kind: str
    begin: float
    end: float
    track: str = ""
    details: Mapping[str, Detail] = field(default_factory=dict)


def ordered(events: Iterable[Event]) -> list[Event]:
    """By their begin, what encloses others before them."""
    return sorted(events, key=lambda e: (e.begin, -e.end))


@dataclass(frozen=True)
class Held:
    """Bytes in use from the moment `at` on."""

    at: float
    bytes: int


@dataclass(frozen=True)
class Recording:
    """The events in the order of their begin, and the bytes that were allocated beyond those held when the recording began, where the
    profiler sees each allocation. `origin_ns` is when it began, in nanoseconds of time.time_ns()."""

    events: tuple[Event, ...]
    memory: tuple[Held, ...]
    origin_ns: int
