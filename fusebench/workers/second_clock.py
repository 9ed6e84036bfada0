"""A second clock for calls on a CPU: the parent's, which no implementation can reach.

The parent times a batch of calls as a whole, from its message to the answer, and holds that against their number times the median
of the worker's samples. A busy machine makes a batch longer, never shorter: of several the one that says least counts, and what the
kernel says that threads waited for a core is taken off.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from fusebench.timing.summary import Batch, Timing
from fusebench.workers import protocol

BATCH_S, MOST_CALLS = 4e-3, 1024  # of a batch: shorter than a slice of a busy core
TRIES = 10
# What a batch may take: calls back to back may be slower than alone, and a message and its answer take time.
FACTOR, SLACK_S = 2.0, 2e-3


def watch(worker: Any, timing: Timing, timeout_s: float) -> Batch | None:
    """What the parent's clock says of the cell in hand of a worker that has timed it; None where it is this very process.

    Raises WorkerLost if the worker dies of it.
    """
    process = getattr(worker, "process", None)
    if process is None:
        return None
    calls, found = max(1, min(MOST_CALLS, math.ceil(BATCH_S / timing.median))), []
    for _ in range(TRIES):
        calls = worker.get(protocol.MakeReady(calls), protocol.Ready, timeout_s).calls
        waited, begin = _waited_s(process.pid), time.perf_counter()
        worker.get(protocol.RunReady(), protocol.Ran, timeout_s)
        took = time.perf_counter() - begin
        took = max(0.0, took - (_waited_s(process.pid) - waited))
        found.append(Batch(calls, took, FACTOR * calls * timing.median + SLACK_S))
        if not found[-1].contradicts:
            return found[-1]
    return min(found, key=lambda batch: batch.seconds / batch.allowed)


def _waited_s(process: int) -> float:
    """Seconds that this thread, and those of that process that live, were ready but had no core; 0 where the kernel does not say."""
    waited = 0
    for file in (Path("/proc/thread-self/schedstat"), *Path(f"/proc/{process}/task").glob("*/schedstat")):
        try:
            waited += int(file.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # a thread that has ended, a kernel that does not count
            continue
    return waited / 1e9
