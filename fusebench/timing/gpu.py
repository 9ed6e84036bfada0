"""Timing on a GPU: calls of one regime, recorded by CUPTI, with isolated calls between them that the wall clock times too.

Before each call stand kernels that flush L2. They separate the calls in CUPTI's records, and where a call is queued they last
longer than its launch. With warm caches a call of the same inputs stands between the flush and the call that counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from fusebench import draws
from fusebench.backends.protocol import Backend
from fusebench.timing import cupti, state
from fusebench.timing.clocks import Check
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Ring, Samples, enough, together

CHUNK = 20  # calls in one profile: few enough for CUPTI's buffers, many enough to pay for starting it
CHECKS = 2  # isolated calls among them
DRAWN_SHARE = 5  # to so many queued calls comes one more without a time, whose output may be judged
FLUSHES, MOST_FLUSHES = 3, 50  # kernels that overwrite L2 before each call, about 0.1 ms each on an H200
# of one run of calls back to back: enough for the clocks to follow, few for CUPTI
SUSTAINED_S, SUSTAINED_CALLS = 0.02, 2000
BUSY = 0.9  # share of such a run: a device that has less to do waits for the host
ENERGY_S = 0.1  # NVML's counter of energy moves every 20 to 100 ms
RETRIES = 5  # of chunks that the GPU was slowed down in
HOST_CALLS = 200  # whose time on the host is kept

Arguments = Sequence[Any]
_markers: WeakKeyDictionary[Any, cupti.Marker] = WeakKeyDictionary()


@dataclass(frozen=True)
class Sampling:
    """A call of a back end with the ring of its inputs, its samples so far, the back end's flush, and how many of these stand before
    each call."""

    backend: Backend
    call: Callable[..., Any]
    ring: Ring | Sequence[Arguments]
    samples: Samples
    marker: cupti.Marker
    flushes: int


@dataclass
class Turn:
    """One call of a chunk: its input set, the inputs, for warm caches those of the untimed call before it, whether it is isolated, and if so the
    wall time of the call and of the flushes before it, and when it was over, in seconds of the wall clock; whether its output is one of those
    that may be taken, which no call knows of itself."""

    place: int
    arguments: Arguments
    warm_up: Arguments | None
    isolated: bool
    drawn: bool = False
    wall: float = 0.0
    flush_wall: float = 0.0
    over: float = 0.0


@dataclass(frozen=True)
class ProfiledChunk:
    """The kernels of a chunk, which waited for the device itself, and the two clocks, in seconds: when a flush before it was over, by the
    wall clock and by CUPTI, and how far each went until the chunk was over."""

    kernels: list[cupti.Kernel]
    began: float
    first: float
    wall: float
    extent: float

    def advance(self, turns: Sequence[Turn] = (), found: Sequence[cupti.Call] = ()) -> tuple[float, float]:
        """How far each clock went to the end, or to an isolated call's in the later half, where they differ least: the host may come back late
        from a wait, while a clock that runs wrong does so at each of them."""
        ends = [(self.wall, self.extent)]
        for turn, seen in zip(turns, found, strict=True):
            if turn.isolated and turn.over - self.began >= self.wall / 2 and seen.kernels:
                ends.append((turn.over - self.began, max(k.end for k in seen.kernels) - self.first))
        return min(ends, key=lambda clocks: abs(clocks[0] - clocks[1]))


def measure(
    backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Arguments], plan: Plan
) -> Samples:  # fmt: skip
    """Samples of a warmed-up call. Raises RuntimeError as measure.py says."""
    samples = Samples("wall" if plan.regime == "isolated" else "cupti", plan)
    each = _host(backend, call, ring, plan.time_s, samples)
    marker = _marker(backend)
    # the flushes must outlast their own launches and that of the call behind them, and take as long as the call, since what a
    # wait costs the host grows with its length
    lead = max(marker.duration - _flush_host(backend), marker.duration / 10)
    for_launch, for_call = 1.5 * statistics.median(samples.host) / lead, min(each / marker.duration, MOST_FLUSHES)
    flushes = max(FLUSHES, math.ceil(max(for_launch, for_call)))
    this = Sampling(backend, call, ring, samples, marker, flushes)
    if plan.cache == "warm":
        samples.launches = _launches(this)
        if plan.regime == "sustained":
            most = min(SUSTAINED_CALLS // samples.launches, math.ceil(SUSTAINED_S / each))
            samples.run = together(ring, max(2, most))
    take = {"queued": _queued, "isolated": _isolated, "sustained": _sustained}[plan.regime]
    end = time.perf_counter() + plan.time_s
    retries = 0
    while not samples.time or not enough(samples, end):
        before = state.read("cuda")
        kept = len(samples.time), len(samples.busy), len(samples.check), len(samples.profiles)
        turn = (
            each * (2 if plan.cache == "warm" else 1) + flushes * marker.duration
        )  # a warm call has an untimed one before it
        count = max(1, min(CHUNK, plan.calls - kept[0], int((end - time.perf_counter()) / turn)))
        take(this, count)
        after = state.read("cuda")
        if slowdown := before.slowdown or after.slowdown:
            samples.discarded += len(samples.time) - kept[0]
            for values, count in zip((samples.time, samples.busy, samples.check, samples.profiles), kept, strict=True):
                del values[count:]  # type: ignore[attr-defined]
            retries += 1
            if retries > RETRIES:
                raise RuntimeError(
                    f"the GPU stays slowed down ({slowdown}): {samples.discarded} samples were discarded"
                )
            state.cool_down()
            end = time.perf_counter() + plan.time_s
            continue
        samples.states += [before, after]
    return samples


def _marker(backend: Backend) -> cupti.Marker:
    """The back end's flush, which is looked at once a process: it is the same for all cells. It is ready to be launched."""
    if backend not in _markers:
        _markers[backend] = cupti.marker(backend)
    else:
        backend.flush()
        backend.wait(None)
    return _markers[backend]


def _host(
    backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Arguments], time_s: float, samples: Samples
) -> float:
    """Takes the seconds of the calling thread a call, in runs of ten without waiting (of fewer where ten take longer than
    `time_s`), the queue emptied between the runs; and the energy of a call, the whole board's, over at least ENERGY_S of such
    runs with the copies of their inputs. Returns the seconds a call, the copies left out."""
    calls, begin, before = 0, time.perf_counter(), state.energy_j()
    working = 0.0
    least = ENERGY_S if before is not None and time_s > 2 * ENERGY_S else 0.0
    while not calls or time.perf_counter() - begin < (time_s if calls < 10 else max(time_s / 8, least)):
        fit = int(time_s * calls / working) if working else 1
        waiting = [ring[i % len(ring)] for i in range(together(ring, min(10, fit)))]
        backend.wait(waiting)
        output, run_began = None, time.perf_counter()
        for arguments in waiting:
            start = time.perf_counter_ns()
            output = call(*arguments)
            if calls < HOST_CALLS:
                samples.host.append((time.perf_counter_ns() - start) / 1e9)
            calls += 1
        backend.wait(output)
        working += time.perf_counter() - run_began
    after, took = state.energy_j(), time.perf_counter() - begin
    if before is not None and after is not None and took >= ENERGY_S:
        samples.energy_j = (after - before) / calls
    return working / calls


def _flush_host(backend: Backend) -> float:
    """Seconds of the calling thread that a flush takes."""
    backend.wait(None)
    begin = time.perf_counter()
    for _ in range(FLUSHES):
        backend.flush()
    took = time.perf_counter() - begin
    backend.wait(None)
    return took / FLUSHES


def _queued(this: Sampling, count: int) -> None:
    """Adds a chunk of queued calls with isolated ones among them, and with drawn ones, which are queued as well and have no time: the copies of
    their outputs stand behind them."""
    samples, drawn = this.samples, _to_draw(this, count)
    count = together(this.ring, count + drawn)
    kinds = [False] * count
    for number in range(min(CHECKS, count)):
        kinds.insert((number + 1) * len(kinds) // (CHECKS + 1), True)
    turns = _turns(this, kinds)
    queued = [turn for turn in turns if not turn.isolated]
    for _ in range(min(drawn, count - 1)):
        queued.pop(draws.below(len(queued))).drawn = True
    profile = _profile(this.backend, _chunk(this, turns))
    found = cupti.split(profile.kernels, this.marker, this.flushes, len(turns))
    samples.profiles.append(profile.advance(turns, found))
    _check(samples, turns, found)
    for turn, seen in zip(turns, found, strict=True):
        if not (turn.isolated or turn.drawn):
            own = seen if turn.warm_up is None else _last(seen, samples.launches or 0)
            samples.time.append(own.span)
            samples.busy.append(cupti.busy(own.kernels))


def _isolated(this: Sampling, count: int) -> None:
    """Adds a chunk of isolated calls: timed without the profiler, which costs every launch a little, and checked with it."""
    samples = this.samples
    timed = _turns(this, [True] * together(this.ring, count))
    for turn in timed:
        turn.drawn = True  # taken behind its clock
    _chunk(this, timed)()
    samples.time += [turn.wall for turn in timed]
    checked = _turns(this, [True] * together(this.ring, CHECKS))
    profile = _profile(this.backend, _chunk(this, checked))
    found = cupti.split(profile.kernels, this.marker, this.flushes, len(checked))
    samples.profiles.append(profile.advance(checked, found))
    _check(samples, checked, found)
    samples.busy += [check.busy for check in samples.check[-len(checked) :]]


def _to_draw(this: Sampling, count: int) -> int:
    """How many calls more than those are made, because their outputs may be taken: at least one of the cell."""
    if not isinstance(this.ring, Ring) or this.ring.taken is None:
        return 0
    return max(count // DRAWN_SHARE, 0 if this.samples.drawn else 1)


def _turns(this: Sampling, isolated: Sequence[bool]) -> list[Turn]:
    """The next calls, with their inputs."""
    ring, samples = this.ring, this.samples
    samples.last = None  # its inputs make room for the next ones
    places = [(len(samples.time) + number) % len(ring) for number in range(len(isolated))]
    warm = samples.plan.cache == "warm"
    return [Turn(p, ring[p], ring[p] if warm else None, kind) for p, kind in zip(places, isolated, strict=True)]


def _chunk(this: Sampling, turns: Sequence[Turn]) -> Callable[[], None]:
    """What makes the calls, one after the other behind its flushes, and waits for the device at the end."""
    backend, call, ring, samples, flushes = this.backend, this.call, this.ring, this.samples, this.flushes
    backend.wait([turn.arguments for turn in turns])

    def chunk() -> None:
        output = None
        for turn in turns:
            if turn.isolated:
                backend.wait(output)
            backend.forget_l2()  # what the call before left there on purpose
            begin = time.perf_counter_ns()
            for _ in range(flushes):
                backend.flush()
            if turn.isolated:
                backend.wait(output)
                turn.flush_wall = (time.perf_counter_ns() - begin) / 1e9
            if turn.warm_up is not None:
                output = call(*turn.warm_up)
                for copied in _copied(ring):
                    backend.copy(turn.arguments[copied])  # reads what the call before did not
            if turn.isolated:
                backend.wait(output)
                begin = time.perf_counter_ns()
                output = call(*turn.arguments)
                backend.wait(output)
                turn.over = (over := time.perf_counter_ns()) / 1e9
                turn.wall = (over - begin) / 1e9
            else:
                output = call(*turn.arguments)
            samples.keep(ring, turn.place, turn.arguments, output)
            if turn.drawn:
                samples.draw(ring, turn.place, turn.arguments, output)
        backend.wait(output)

    return chunk


def _check(samples: Samples, turns: Sequence[Turn], found: Sequence[cupti.Call]) -> None:
    """Keeps what both clocks say of the isolated calls, and which kernels a call is."""
    for turn, seen in zip(turns, found, strict=True):
        if turn.drawn:
            continue
        own = seen if turn.warm_up is None else _last(seen, samples.launches or 0)
        samples.launches, samples.kernels = len(own.kernels), [k.name for k in own.kernels]
        samples.kernels_seen.update(k.name for k in own.kernels)
        if turn.isolated:
            gap = max(0.0, turn.flush_wall - seen.flushes)
            samples.check.append(Check(turn.wall, own.span, cupti.busy(own.kernels), gap))


def _sustained(this: Sampling, _: int) -> None:
    """Adds one sample: the mean of calls back to back. Where the device is busy nearly throughout, that is from the first
    kernel's start to the last one's end; else by the wall without the profiler, which costs every launch a little."""
    samples = this.samples
    turn, chunk = _row(this)
    profile = _profile(this.backend, chunk)
    (seen,) = cupti.split(profile.kernels, this.marker, this.flushes, 1)
    samples.profiles.append(profile.advance())
    count, busy, launches = len(seen.kernels), cupti.busy(seen.kernels), samples.launches or 0
    if count != samples.run * launches:
        raise cupti.LostRecords(f"CUPTI recorded {count} kernels of {samples.run} calls with {launches} launches each")
    if not samples.time and busy < BUSY * seen.span:
        samples.timer = "wall"
    samples.check.append(Check(turn.wall, seen.span, busy, max(0.0, turn.flush_wall - seen.flushes)))
    took = seen.span
    if samples.timer == "wall":
        unseen, chunk = _row(this)
        chunk()
        took = unseen.wall
    samples.time.append(took / samples.run)
    samples.busy.append(busy / samples.run)
    samples.kernels = [k.name for k in seen.kernels[:launches]]
    samples.kernels_seen.update(k.name for k in seen.kernels)


def _row(this: Sampling) -> tuple[Turn, Callable[[], None]]:
    """What makes calls back to back behind flushes that are waited for, and where their times will stand."""
    backend, call, ring, samples, flushes = this.backend, this.call, this.ring, this.samples, this.flushes
    samples.last = None  # as in _turns
    first = len(samples.time) * samples.run
    places = [number % len(ring) for number in range(first, first + samples.run)]
    waiting = [ring[place] for place in places]
    backend.wait(waiting)
    turn = Turn(places[0], waiting[0], None, True)

    def chunk() -> None:
        output = None
        backend.forget_l2()
        begin = time.perf_counter_ns()
        for _ in range(flushes):
            backend.flush()
        backend.wait(output)
        turn.flush_wall = (time.perf_counter_ns() - begin) / 1e9
        begin = time.perf_counter_ns()
        for place, arguments in zip(places, waiting, strict=True):
            output = call(*arguments)
            samples.keep(ring, place, arguments, output)
        backend.wait(output)
        turn.wall = (time.perf_counter_ns() - begin) / 1e9

    return turn, chunk


def _profile(backend: Backend, chunk: Callable[[], None]) -> ProfiledChunk:
    """A chunk with the profiler, from the end of a flush before it: a profile's first launch is slow."""
    began = took = 0.0

    def timed() -> None:
        nonlocal began, took
        backend.flush()
        backend.wait(None)
        begin = time.perf_counter_ns()
        chunk()
        began, took = begin / 1e9, (time.perf_counter_ns() - begin) / 1e9

    first, *kernels = cupti.record(timed)
    return ProfiledChunk(kernels, began, first.end, took, max(k.end for k in (first, *kernels)) - first.end)


def _launches(this: Sampling) -> int:
    """Kernels of one call."""
    arguments = this.ring[0]
    this.backend.wait(arguments)

    def one() -> None:
        for _ in range(this.flushes):
            this.backend.flush()
        this.backend.wait(this.call(*arguments))

    return len(cupti.split(cupti.record(one), this.marker, this.flushes, 1)[0].kernels)


def _last(seen: cupti.Call, launches: int) -> cupti.Call:
    """The second of two calls. Raises LostRecords if there are fewer kernels than both have."""
    if len(seen.kernels) < 2 * launches:
        raise cupti.LostRecords(
            f"CUPTI recorded {len(seen.kernels)} kernels of two calls with {launches} launches each"
        )
    return cupti.Call(seen.kernels[-launches:], seen.flushes)


def _copied(ring: Ring | Sequence[Arguments]) -> Sequence[int]:
    return sorted(ring.copied) if isinstance(ring, Ring) else ()
