"""Timing on the CPU: the synchronised wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusebench.backends.protocol import Backend
from fusebench.timing import state
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Ring, Samples, enough, together

SUSTAINED_S, SUSTAINED_CALLS = 0.005, 1024  # of one run of calls back to back on the CPU: at least, and at most


def measure(backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], plan: Plan) -> Samples:
    """Synchronised wall clock of each call (sustained: of runs of calls of 5 ms or more), of a warmed-up call."""
    samples = Samples("wall", plan)
    flushed = np.zeros(state.cache_bytes() * 2, np.int8) if plan.cache == "cold" else None
    end = time.perf_counter() + plan.time_s
    most = together(ring, SUSTAINED_CALLS)
    waited, began = state.waited_s(), time.perf_counter()
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
            waited, began = state.waited_s(), time.perf_counter()
            continue
        samples.time.append(took / samples.run)
        samples.draw(ring, places[-1], waiting[-1], outputs[-1])  # those before it may be in the same buffer
        for place, arguments, output in zip(places, waiting, outputs, strict=True):
            samples.keep(ring, place, arguments, output)
    samples.elapsed_s, now = time.perf_counter() - began, state.waited_s()
    samples.waited_s = None if now is None or waited is None else max(0.0, now - waited)
    return samples
