"""How long a call takes: the same rule for every framework, on the GPU by CUPTI's kernel records, on the CPU by the wall.

A plan says what is measured, and its regime is never mixed with another: `queued`, the device's time of a call that waits in
the stream, so that the host's launch time does not enter; `isolated`, the wall clock of a call that an idle device is given;
`sustained`, calls back to back, as fast as host and device can. Sampling ends when the median is known well enough.
docs/timing.md says why a figure may be believed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import numpy as np

from fusebench import state
from fusebench.contract import Device

MIN_SAMPLES, MAX_SAMPLES = 6, 1000  # fewer than 6 have no 95 % interval of their median
TARGET_SAMPLES = 20  # a narrow interval of fewer may be luck, and so may one of many that are looked at
SLOW_SAMPLES = 3  # of calls that take the whole budget each
CONFIDENCE = 0.95
COPIES_BYTES = 4 * 2**30  # of inputs that wait for their calls at one time
SUSTAINED_S, SUSTAINED_CALLS = 0.005, 1024  # of one run of calls back to back on the CPU: at least, and at most
RESOLUTION_S = 0.5e-6  # of the two clocks against each other
REGIMES = ("queued", "isolated", "sustained")
CACHES = ("cold", "warm")


@dataclass(frozen=True)
class Plan:
    """How a cell is sampled: for `time_s` seconds at most (0: not at all), until the 95 % interval of the median is within
    ± `target` of it (0: for the whole time). `regime` and `cache` are of REGIMES and CACHES; "auto" is `queued` with cold L2 on
    a GPU, `isolated` with warm caches on the CPU, and warm where calls are sustained. `calls` limits the samples."""

    time_s: float = 0.5
    target: float = 0.01
    regime: str = "auto"
    cache: str = "auto"
    calls: int = MAX_SAMPLES

    def on(self, device: str) -> Plan:
        """The plan with its "auto" decided for a device's type. Raises ValueError for what cannot be measured there."""
        regime = self.regime if self.regime != "auto" else "queued" if device == "cuda" else "isolated"
        cold = device == "cuda" and regime != "sustained"
        cache = self.cache if self.cache != "auto" else "cold" if cold else "warm"
        if regime == "queued" and device == "cpu":
            raise ValueError("regime=queued: a CPU has no stream to queue in; isolated and sustained work there")
        if regime == "sustained" and cache == "cold":
            raise ValueError(
                "cache=cold: sustained calls leave no room for a flush; cache=warm works, or regime=queued"
            )
        return replace(self, regime=regime, cache=cache)


class Backend(Protocol):
    """What timing needs of a back end; the modules in `backends/` offer it."""

    def wait(self, outputs: Any) -> None: ...
    def flush(self) -> None: ...
    def copy(self, array: Any) -> Any: ...


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


@dataclass(frozen=True)
class Check:
    """One isolated call, or a run of sustained ones, on both clocks, in seconds: its wall time, the span and the busy time of its
    kernels by CUPTI, and the gap, what the wall clock showed more than CUPTI for the flushes just before."""

    wall: float
    span: float
    busy: float
    gap: float


@dataclass
class Samples:
    """Times in seconds, one a call (sustained: the mean of each run of calls).

    `time` is what the plan's regime measures. On the GPU there are beside it: `busy`, the union of the same calls' kernels;
    `host`, what a call costs the calling thread; and of isolated calls among them (sustained: of each run of `run` calls),
    `check`, what both clocks say. `profiles` are the wall time of each profile and CUPTI's, from its first kernel to its last.
    """

    timer: str
    plan: Plan
    time: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    check: list[Check] = field(default_factory=list)
    profiles: list[tuple[float, float]] = field(default_factory=list)
    run: int = 1
    look: int = TARGET_SAMPLES  # how many samples there must be when the interval is looked at next
    launches: int | None = None
    kernels: list[str] = field(default_factory=list)
    discarded: int = 0
    energy_j: float | None = None
    states: list[state.State] = field(default_factory=list)
    # of the last timed call on the ring's last set, never the one that the first call was checked on
    arguments: Sequence[Any] = ()
    output: Any = None

    def summary(self) -> dict[str, Any]:
        """What a record keeps: the raw samples, their quartiles and the interval of their median, in seconds."""
        q1, median, q3 = quartiles(self.time)
        low, high = median_interval(self.time) or (None, None)
        around = uncertainty(self.time)
        return {
            "timer": self.timer, "regime": self.plan.regime, "cache": self.plan.cache, "unit": "s", "run": self.run,
            "samples": self.time, "median": median, "q1": q1, "q3": q3,
            "interval": None if low is None else [low, high], "uncertainty": None if math.isinf(around) else around,
            "target": self.plan.target, "target_missed": around > self.plan.target > 0,
            "busy": self.busy, "busy_median": quartiles(self.busy)[1] if self.busy else None,
            "host": self.host, "host_median": quartiles(self.host)[1] if self.host else None,
            "clocks": agreement(self), "launches": self.launches, "kernels": self.kernels,
            "discarded": self.discarded, "energy_j": self.energy_j, "state": state.summary(self.states),
        }  # fmt: skip


def together(ring: Ring | Sequence[Sequence[Any]], count: int) -> int:
    """How many calls, `count` at most, can have their arguments made beforehand."""
    size = 2 * ring.copied_bytes if isinstance(ring, Ring) else 0  # twins, with warm caches
    return max(1, min(count, COPIES_BYTES // size)) if size else count


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile, linearly interpolated."""
    q1, median, q3 = np.percentile(np.asarray(samples), [25, 50, 75])
    return float(q1), float(median), float(q3)


@cache
def _rank(n: int) -> int:
    """The largest k such that the k-th smallest and the k-th largest of n samples enclose the median with CONFIDENCE, or 0.

    The number of samples below the median is binomial with probability 1/2, whatever the samples' distribution is.
    """
    below, k = 0, 0
    while (below := below + math.comb(n, k)) / 2**n <= (1 - CONFIDENCE) / 2:
        k += 1
    return k


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median from order statistics, or None of fewer than 6 samples."""
    k, ordered = _rank(len(samples)), sorted(samples)
    return (ordered[k - 1], ordered[-k]) if k else None


def uncertainty(samples: Sequence[float]) -> float:
    """Half the width of the median's interval ÷ the median; infinite where there is no interval."""
    interval = median_interval(samples)
    return (interval[1] - interval[0]) / 2 / quartiles(samples)[1] if interval else math.inf


def enough(samples: Samples, end: float) -> bool:
    """Whether sampling may stop: the time is over, or the median is known well enough, which is looked at every
    TARGET_SAMPLES samples: to look at each would stop at lucky ones, and the interval miss the median in 8 % instead of 5."""
    count, plan = len(samples.time), samples.plan
    least = SLOW_SAMPLES if count and samples.time[-1] > plan.time_s else MIN_SAMPLES
    if count >= plan.calls or (count >= least and time.perf_counter() >= end):
        return True
    if count < samples.look:
        return False
    samples.look = count + TARGET_SAMPLES
    return uncertainty(samples.time) <= plan.target > 0


def agreement(samples: Samples) -> dict[str, Any] | None:
    """What the second clock says of the isolated calls: None where there were none.

    Hard: neither busy time nor span may exceed the wall time around the same call, and over all profiles the two clocks must
    advance by the same within 5 % and a millisecond a profile. Where the GPU's time is over five times the
    host's, the wall may exceed the span by the host's time and the gap, each at most doubled, and 2 %: more is work that
    CUPTI's records do not show. Elsewhere the host's time hides what the GPU does, and the second clock says n/a.
    """
    if not samples.check:
        return None
    host = quartiles(samples.host)[1] if samples.host else 0.0
    columns = {name: [getattr(c, name) for c in samples.check] for name in ("wall", "span", "busy", "gap")}
    found: dict[str, Any] = {name: quartiles(values)[1] for name, values in columns.items()}
    found |= {"host": host, "says": "agrees", "reason": None}
    for c in samples.check:
        took = max(c.span, c.busy)
        if took > c.wall * 1.001 + RESOLUTION_S:
            reason = (
                f"CUPTI saw kernels for {took * 1e6:.2f} µs in a call that took {c.wall * 1e6:.2f} µs by the wall clock"
            )
            return found | {"says": "contradicts", "reason": reason}
    walls, extents = (sum(column) for column in zip(*samples.profiles, strict=True))
    if abs(walls - extents) > 0.05 * walls + 1e-3 * len(samples.profiles):
        reason = f"while the wall clock advanced by {walls * 1e3:.3g} ms, CUPTI's did by {extents * 1e3:.3g} ms"
        return found | {"says": "contradicts", "reason": reason}
    if found["span"] <= 5 * host * samples.run:
        return found | {"says": "n/a"}

    def unexplained(c: Check) -> float:
        return c.wall - c.span - 2 * (host + c.gap) - 0.02 * c.span

    # the least of all: what CUPTI does not see is missing in each, a busy host delays some
    least = min(samples.check, key=unexplained)
    if unexplained(least) > 0:
        reason = (
            f"the wall clock shows {least.wall * 1e6:.2f} µs, CUPTI's kernels {least.span * 1e6:.2f} µs; launching and waiting "
            f"explain {(host + least.gap) * 1e6:.2f} µs"
        )
        return found | {"says": "contradicts", "reason": reason}
    return found


def measure(
    backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], device: Device, plan: Plan
) -> Samples:
    """Times `call` on the ring's input sets in turn, as the plan says; to take a set from the ring is never timed.

    Raises RuntimeError if CUPTI recorded nothing or lost a call, or if the GPU stays slowed down by heat or power.
    """
    plan = plan.on(device.type)
    _warm_up(backend, call, ring, plan.time_s / 4)
    if device.type == "cpu":
        return _wall(backend, call, ring, plan)
    from fusebench import gpu_timing

    return gpu_timing.measure(backend, call, ring, plan)


def _warm_up(backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], budget_s: float) -> None:
    """Calls for a time, not a count: a fresh jax-triton call is slow for its first 500 calls, which is still under a second."""
    end = time.perf_counter() + budget_s
    for i in itertools.count():
        backend.wait(call(*ring[i % len(ring)]))
        if time.perf_counter() >= end:
            return


def _wall(backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], plan: Plan) -> Samples:
    """Synchronised wall clock of each call (sustained: of runs of calls of 5 ms or more), for the CPU."""
    samples = Samples("wall", plan)
    flushed = np.zeros(state.cache_bytes() * 2, np.int8) if plan.cache == "cold" else None
    end = time.perf_counter() + plan.time_s
    most = together(ring, SUSTAINED_CALLS)
    while not samples.time or not enough(samples, end):
        if not len(samples.time) % 20:
            samples.states.append(state.read("cpu"))
        first = len(samples.time) * samples.run
        places = [number % len(ring) for number in range(first, first + samples.run)]
        waiting = [ring[place] for place in places]
        backend.wait(waiting)
        if flushed is not None:
            np.invert(flushed, out=flushed)
        begin = time.perf_counter_ns()
        outputs = [call(*arguments) for arguments in waiting]
        backend.wait(outputs)
        took = (time.perf_counter_ns() - begin) / 1e9
        if plan.regime == "sustained" and took < SUSTAINED_S and 2 * samples.run <= most:
            samples.run *= 2
            samples.time.clear()  # all of them: to leave out the short run alone would be to choose the slow ones
            continue
        samples.time.append(took / samples.run)
        if places[-1] == len(ring) - 1:
            samples.arguments, samples.output = waiting[-1], outputs[-1]
    return samples
