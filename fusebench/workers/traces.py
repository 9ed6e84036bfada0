"""How a worker answers what is asked of a call for `fusebench profile`."""

from __future__ import annotations

import sys
from typing import Any

from fusebench.tracing import calls
from fusebench.workers import protocol


def answer(bench: Any, asked: protocol.TraceCell) -> protocol.Traced:
    """Traces the cell in hand, or makes one call of it for the hardware counters that a program around this process reads."""
    if asked.counted:
        calls.count(bench.backend, bench.call, bench.arguments.ring)
        return protocol.Traced()
    plan = calls.TracePlan(asked.name, asked.calls, asked.queued, tuple(sys.modules["implementations"].__path__))
    return protocol.Traced(
        calls.trace(bench.backend, bench.call, bench.arguments.ring, bench.device.type, plan, bench.peak)
    )
