"""Memory over the time of one call: from the allocations that a profiler saw, or looked at again and again while the call runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from fusebench.backends.events import Held
from fusebench.backends.protocol import Backend

LOOK_S = 1e-4  # between two looks
LINGER_S = 5e-3  # before and after the call, so that a short one is seen at all


def during(memory: Sequence[Held], begin: float, end: float) -> tuple[Held, ...]:
    """The bytes from `begin` to `end`, beyond those held at its begin; the line of time begins there."""
    before = next((h.bytes for h in reversed(memory) if h.at < begin), 0)
    return (Held(0.0, 0), *(Held(h.at - begin, h.bytes - before) for h in memory if begin <= h.at <= end))


def watch(backend: Backend, call: Callable[..., Any], arguments: Sequence[Any]) -> tuple[tuple[Held, ...], str]:
    """The bytes of the device, on a CPU of the process, while one call runs; only changes are kept. The second is which of them."""
    process = psutil.Process()
    on_device = backend.held_bytes() is not None

    def look() -> int:
        return int(backend.held_bytes() or 0) if on_device else int(process.memory_info().rss)

    backend.wait(arguments)
    held, ended = [Held(0.0, look())], threading.Event()
    begin = time.perf_counter()

    def keep_looking() -> None:
        while not ended.is_set():
            now = look()
            if now != held[-1].bytes:
                held.append(Held(time.perf_counter() - begin, now))
            time.sleep(LOOK_S)

    watcher = threading.Thread(target=keep_looking, daemon=True)
    watcher.start()
    time.sleep(LINGER_S)
    output = call(*arguments)
    backend.wait(output)
    time.sleep(LINGER_S)
    ended.set()
    watcher.join()
    first = held[0].bytes
    return tuple(Held(h.at, h.bytes - first) for h in held), "device" if on_device else "process"
