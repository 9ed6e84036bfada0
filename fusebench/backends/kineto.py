"""A recording by torch.profiler, which on a GPU sees the kernels and driver calls of JAX in its process too (CUPTI).

It is read from the trace that the profiler writes: what it offers in Python lacks streams, grids and driver calls.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench.backends.events import API, COPY, KERNEL, OPERATOR, RANGE, Event, Held, Recording, Work, ordered

KINDS = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": COPY, "cpu_op": OPERATOR, "cuda_runtime": API, "cuda_driver": API,
    "user_annotation": RANGE,
}  # fmt: skip
ON_DEVICE = (KERNEL, COPY)
DETAILS = {
    "grid": "grid", "block": "block", "registers per thread": "registers", "shared memory": "shared_bytes", "bytes": "bytes",
    "est. achieved occupancy %": "estimated_occupancy_percent",
}  # fmt: skip
DEVICE_TYPES = {"cpu": 0, "cuda": 1}  # as Torch numbers them in its trace


def record(work: Work, device: str, allocations: bool = True) -> Recording:
    """What host and device did while `work` ran, which must wait for the device itself. `allocations` is whether the memory is Torch's."""
    from torch.profiler import ProfilerActivity, profile, record_function

    names: set[str] = set()

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        names.add(name)
        with record_function(name):
            yield

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    origin_ns = time.time_ns()
    with profile(activities=activities, profile_memory=allocations) as profiler:
        work(mark)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace = json.loads(file.read_text(encoding="utf-8", errors="replace"), strict=False)
    return read(trace, names, device, origin_ns)


def read(trace: Mapping[str, Any], ours: set[str], device: str, origin_ns: int) -> Recording:
    """The recording of a trace that torch.profiler wrote; `ours` are the names of our ranges."""
    written = [e for e in trace["traceEvents"] if "ts" in e]
    base_us = (int(trace.get("baseTimeNanoseconds", 0)) - origin_ns) / 1e3

    def seconds(microseconds: float) -> float:
        return (base_us + microseconds) / 1e6

    events = []
    for e in written:
        kind = KINDS.get(str(e.get("cat")))
        if e["ph"] != "X" or kind is None:
            continue
        if kind == RANGE and e["name"] not in ours:
            kind = OPERATOR  # "Torch-Compiled Region" and the like
        begin, args = float(e["ts"]), e.get("args", {})
        track = f"stream {args.get('stream', e['tid'])}" if kind in ON_DEVICE else f"thread {e['tid']}"
        details = {name: _plain(args[key]) for key, name in DETAILS.items() if key in args}
        events.append(Event(e["name"], kind, seconds(begin), seconds(begin + float(e["dur"])), track, details))
    return Recording(tuple(ordered(events)), _memory(written, device, seconds), origin_ns)


def _memory(written: Sequence[Mapping[str, Any]], device: str, seconds: Any) -> tuple[Held, ...]:
    """The bytes that allocations and releases on the device sum to."""
    moments = [
        (float(e["ts"]), int(e["args"]["Bytes"]))
        for e in written
        if e["name"] == "[memory]" and e["args"].get("Device Type") == DEVICE_TYPES[device]
    ]
    held, total = [], 0
    for at, change in sorted(moments, key=lambda moment: moment[0]):
        total += change
        held.append(Held(seconds(at), total))
    return tuple(held)


def _plain(value: Any) -> str | int | float:
    """A grid or block, [4, 2, 1], as "4×2"."""
    if not isinstance(value, list):
        return value if isinstance(value, int | float) else str(value)
    while len(value) > 1 and value[-1] == 1:
        value = value[:-1]
    return "×".join(map(str, value))
