"""The yardsticks of a device: those that earlier runs have left, and the others measured now by Torch's worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from fusebench.timing import yardstick_cache
from fusebench.timing.yardstick import Missing, Rate
from fusebench.workers import protocol

BUDGET_S = 0.2  # of sampling for each rate


def find(
    worker: Any, names: Sequence[str], timeout_s: float, fresh: bool = False, on_name: Callable[[str], None] = lambda name: None
) -> tuple[str, dict[str, Rate | Missing]]:  # fmt: skip
    """The key of Torch's worker, and the rates of those names: from the file, or measured now and kept; all now if `fresh`.

    `on_name` hears which one is about to be measured. Raises WorkerLost if the worker dies of one; those measured before it
    are kept.
    """
    key = str(worker.get(protocol.AskYardstickKey(), protocol.YardstickKey, timeout_s).key)
    known = {} if fresh else {name: rate for name, rate in yardstick_cache.read(key).items() if name in names}
    measured: dict[str, Rate] = {}
    missing: dict[str, Missing] = {}
    try:
        for name in [n for n in names if n not in known]:
            on_name(name)
            for _ in range(2):  # once more where the profiler lost records
                reply = worker.ask(protocol.MeasureRate(name, BUDGET_S), protocol.MeasuredRate, timeout_s)
                if not getattr(reply, "again", False):
                    break
            if isinstance(reply, protocol.Refused):
                missing[name] = Missing(reply.reason)
            else:
                measured[name] = Rate(reply.value, reply.n, datetime.now(UTC).isoformat(timespec="seconds"))
    finally:
        if measured:
            yardstick_cache.keep(key, measured)
    return key, {**known, **missing, **measured}
