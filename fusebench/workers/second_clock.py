"""A second clock for calls on a CPU: the parent's, which no implementation can reach.

The parent times batches of calls, each as a whole from its message to the answer, and holds them against their number times the
median of the worker's samples. A busy machine makes a batch longer, never shorter: one that is short enough ends the matter, and one
in which threads waited for a core, as the kernel counts it, says nothing. Nobody counts that of threads which have ended: a batch in
which as many began as there were calls says nothing either. One call of a batch gets inputs that none has seen, for the judge.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusebench.inputs import Stored
from fusebench.timing.summary import TimedBatch, Timing
from fusebench.workers import protocol

BATCH_S, MOST_CALLS = 4e-3, 1024  # of a batch: shorter than a slice of a busy core
LONG_S = 0.1  # after a batch that took longer, the next have fewer calls
TRIES, LEAST, MOST_S = 20, 3, 1.0  # at most so many batches, or such a time; so many must contradict, if one does
# What a batch may take. Another process on the same core's second thread, or on the same caches, was seen to make calls of 3 µs three
# times slower for a second without a wait for a core; a message and its answer take time.
FACTOR, SLACK_S = 5.0, 2e-3
WAITED = 0.25  # of a batch, beyond which it says nothing


def reaches(worker: Any) -> bool:
    """Whether the worker has another process than the parent."""
    return getattr(worker, "process", None) is not None


def watch(worker: Any, timing: Timing, unseen: Sequence[Stored], folder: str, timeout_s: float) -> TimedBatch | None:
    """What the parent's clock says of the cell in hand of a worker of its own that has timed it; None where that was too busy to
    say anything. One call of each batch gets the `unseen` inputs.

    Raises WorkerLost if the worker dies of it.
    """
    process, files = worker.process, tuple(unseen)
    calls, telling = max(1, min(MOST_CALLS, math.ceil(BATCH_S / timing.median))), []
    end = time.perf_counter() + MOST_S
    for _ in range(TRIES):
        calls = worker.get(protocol.MakeReady(calls, files, folder), protocol.Ready, timeout_s).calls
        waited, number, begin = _waited_s(process.pid), _last_task(), time.perf_counter()
        worker.get(protocol.RunReady(), protocol.Ran, timeout_s)
        took = time.perf_counter() - begin
        waited, began = _waited_s(process.pid) - waited, abs(_last_task() - number)
        found = TimedBatch(calls, took, FACTOR * calls * timing.median + SLACK_S)
        if not found.contradicts:
            return found
        if waited <= WAITED * took and began < calls:
            telling.append(found)
        calls = max(1, math.ceil(calls * min(1.0, LONG_S / took)))
        if time.perf_counter() >= end and len(telling) not in range(1, LEAST):
            break
    return min(telling, key=lambda batch: batch.seconds / batch.allowed) if len(telling) >= LEAST else None


def _last_task() -> int:
    """The number that the machine gave last to a process or thread, which grows by one for each; 0 where it does not say."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[-1])
    except (OSError, IndexError, ValueError):
        return 0


def _waited_s(process: int) -> float:
    """Seconds that this thread, and those of that process that live, were ready but had no core; 0 where the kernel does not say."""
    waited = 0
    for file in (Path("/proc/thread-self/schedstat"), *Path(f"/proc/{process}/task").glob("*/schedstat")):
        try:
            waited += int(file.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # a thread that has ended, a kernel that does not count
            continue
    return waited / 1e9
