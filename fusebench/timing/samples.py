"""The samples of a call: the inputs that it gets, what is kept of each time, and when there are enough of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from fusebench import draws
from fusebench.timing import state
from fusebench.timing.clocks import Check, agreement
from fusebench.timing.plan import Plan
from fusebench.timing.summary import Timing

MIN_SAMPLES = 6  # fewer have no 95 % interval of their median
TARGET_SAMPLES = 20  # a narrow interval of fewer may be luck, and so may one of many that are looked at
SLOW_SAMPLES = 3  # of calls that take the whole budget each
CONFIDENCE = 0.95
COPIES_BYTES = 4 * 2**30  # of inputs that wait for their calls at one time
DRAWN = 4  # of the calls in the regime that is timed: of what half of them do not do, that all of these do it has a chance of 6 %


@dataclass(frozen=True, slots=True)
class Ring:
    """The input sets of a cell. `ring[i]` are arguments that no call has seen: copies of set i's inputs at the places in
    `copied`, so that a call may overwrite or donate them, and cannot remember a result by where its input lies; `place`, where
    it is given, makes them of a set; `ready` adds what the call needs besides, of `ready_bytes`. The output of the last timed call on set `kept` is kept, by default the last set;
    beside it, where outputs are `taken` as the clock stops, what that makes of the arguments and the output of calls that are drawn."""

    sets: Sequence[Sequence[Any]]
    copied: frozenset[int]
    copy: Callable[[Any], Any]
    place: Callable[[Sequence[Any]], list[Any]] | None = None
    kept: int | None = None
    ready: Callable[[list[Any]], list[Any]] | None = None
    ready_bytes: int = 0
    taken: Callable[[Sequence[Any], Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.sets)

    def __getitem__(self, number: int) -> list[Any]:
        return self.made_ready(self.placed(self.sets[number]))

    def placed(self, own: Sequence[Any]) -> list[Any]:
        """Arguments of that set that no call has seen."""
        if self.place is not None:
            return self.place(own)
        return [self.copy(a) if place in self.copied else a for place, a in enumerate(own)]

    def made_ready(self, arguments: list[Any]) -> list[Any]:
        """The same list of arguments, with what the call needs besides."""
        return arguments if self.ready is None else self.ready(arguments)

    @property
    def copied_bytes(self) -> int:
        """Bytes that one call's copies take, and what is made of them."""
        return sum(int(self.sets[0][place].nbytes) for place in self.copied) + self.ready_bytes


@dataclass(slots=True)
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
    elapsed_s: float = 0.0  # of the sampling on a CPU, what stands between the calls included
    waited_s: float | None = None  # of all threads together, for a core
    kernels_seen: set[str] = field(default_factory=set)  # the names of all that the device ran of the calls
    # of the last timed call on the set of the ring that is kept
    arguments: Sequence[Any] = ()
    output: Any = None
    # of calls that were drawn: the set, the arguments, and what was taken of the output when the clock had stopped
    drawn: list[tuple[int, Sequence[Any], Any]] = field(default_factory=list)
    offered: int = 0  # from how many these were drawn
    last: tuple[int, Sequence[Any], Any] | None = None  # of the last timed call: the set, the arguments, the output

    def keep(self, ring: Ring | Sequence[Sequence[Any]], place: int, arguments: Sequence[Any], output: Any) -> None:
        """Takes note of a timed call, which is the last one until another follows."""
        self.last = place, arguments, output
        if place == kept_place(ring):
            self.arguments, self.output = arguments, output

    def take_last(self, ring: Ring | Sequence[Sequence[Any]]) -> None:
        """Takes what the very last timed call gave: no call has followed, so that its output is there even where all of them share a
        buffer."""
        if self.last and isinstance(ring, Ring) and ring.taken is not None:
            place, arguments, output = self.last
            self.drawn.append((place, arguments, ring.taken(arguments, output)))
        self.last = None

    def draw(self, ring: Ring | Sequence[Sequence[Any]], place: int, arguments: Sequence[Any], output: Any) -> None:
        """Takes what a call gave with such a chance that of all that are offered each is drawn as likely as any other."""
        if not isinstance(ring, Ring) or ring.taken is None:
            return
        self.offered += 1
        most = together(ring, DRAWN)
        at = len(self.drawn) if len(self.drawn) < most else draws.below(self.offered)
        if at < most:
            self.drawn[at : at + 1] = [(place, arguments, ring.taken(arguments, output))]

    def summary(self) -> Timing:
        """What a record keeps: the raw samples, their quartiles and the interval of their median."""
        q1, median, q3 = quartiles(self.time)
        around = uncertainty(self.time)
        host = quartiles(self.host)[1] if self.host else None
        return Timing(
            timer=self.timer, regime=self.plan.regime, cache=self.plan.cache, run=self.run,
            samples=tuple(self.time), median=median, q1=q1, q3=q3,
            interval=median_interval(self.time), uncertainty=None if math.isinf(around) else around,
            target=self.plan.target, target_missed=around > self.plan.target > 0,
            busy=tuple(self.busy), busy_median=quartiles(self.busy)[1] if self.busy else None,
            host=tuple(self.host), host_median=host, clocks=agreement(self.check, self.profiles, host or 0.0, self.run),
            launches=self.launches, kernels=tuple(self.kernels),
            discarded=self.discarded, energy_j=self.energy_j, state=state.summary(self.states), waiting=self._waiting(),
        )  # fmt: skip

    def _waiting(self) -> float | None:
        """The share of the samples that waited for a core."""
        timed = sum(self.time) * self.run
        if self.waited_s is None or not timed:
            return None
        return waiting([t * self.run for t in self.time], self.waited_s * min(1.0, timed / self.elapsed_s))


def kept_place(ring: Ring | Sequence[Sequence[Any]]) -> int:
    """The set of whose last timed call the output is kept."""
    return ring.kept if isinstance(ring, Ring) and ring.kept is not None else len(ring) - 1


def together(ring: Ring | Sequence[Sequence[Any]], count: int) -> int:
    """How many calls, `count` at most, can have their arguments made beforehand."""
    size = 2 * ring.copied_bytes if isinstance(ring, Ring) else 0  # those of the untimed calls, with warm caches
    return max(1, min(count, COPIES_BYTES // size)) if size else count


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile, linearly interpolated."""
    q1, median, q3 = np.percentile(np.asarray(samples), [25, 50, 75])
    return float(q1), float(median), float(q3)


def waiting(times: Sequence[float], waited_s: float) -> float:
    """The share of the samples in which threads waited for a core, where they waited `waited_s` in all, each thread counted.

    A call of a parallel region ends with its last thread, so that long samples are those which waited: the waiting is laid on them,
    the longest first. A sample has room for its own length of each thread that waits, of as many as there must have been.
    """
    threads = max(1, math.ceil(waited_s / sum(times)))
    count, left = 0.0, waited_s / threads
    for time_s in sorted(times, reverse=True):
        count += min(1.0, left / time_s)
        left = max(0.0, left - time_s)
    return count / len(times)


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
