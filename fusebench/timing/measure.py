"""How long a call takes: the same rule for every framework, on the GPU by CUPTI's kernel records, on the CPU by the wall."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from fusebench.backends.protocol import Backend
from fusebench.contract import Device
from fusebench.timing import cpu, gpu
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Ring, Samples


def measure(
    backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], device: Device, plan: Plan
) -> Samples:
    """Times `call` on the ring's input sets in turn, as the plan says; to take a set from the ring is never timed.

    Raises RuntimeError if CUPTI recorded nothing or lost a call, or if the GPU stays slowed down by heat or power.
    """
    plan = plan.on(device.type)
    _warm_up(backend, call, ring, plan.time_s / 4)
    samples = (cpu if device.type == "cpu" else gpu).measure(backend, call, ring, plan)
    samples.take_last(ring)
    return samples


def _warm_up(backend: Backend, call: Callable[..., Any], ring: Ring | Sequence[Sequence[Any]], budget_s: float) -> None:
    """Calls for a time, not a count: a fresh jax-triton call is slow for its first 500 calls, which is still under a second."""
    end = time.perf_counter() + budget_s
    for i in itertools.count():
        backend.wait(call(*ring[i % len(ring)]))
        if time.perf_counter() >= end:
            return
