"""`fusebench.measure`: the timing of the harness for any callable, from a script of one's own."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from fusebench import machine, records
from fusebench.contract import Case, Cell
from fusebench.run import add_rates
from fusebench.timing import yardstick, yardstick_cache
from fusebench.timing.plan import Plan
from fusebench.workers.worker import Bench, written_bytes


def measure(
    call: Callable[..., Any],
    *arguments: Any,
    name: str | None = None,
    time_s: float = 0.5,
    target: float = 0.01,
    regime: str = "auto",
    cache: str = "auto",
    flops: int = 0,
    moved_bytes: int = 0,
) -> dict[str, Any]:
    """Times `call(*arguments)` as `fusebench bench` times a cell and returns the same record.

    The arguments decide the back end and the device: Torch tensors, JAX arrays, or anything else as plain Python on the CPU.
    On a GPU the time is CUPTI's, each call queued behind an L2 flush; on the CPU it is the synchronised wall clock; `regime`
    and `cache` choose another (timing/plan.py). `time_s` is the sampling budget in seconds, which ends earlier where the interval
    of the median is within ± `target`; `flops` and `moved_bytes` of one call, where given, add TFLOP/s and GB/s, and the best
    time by the yardsticks that earlier runs have left (`fusebench yardsticks`). What is faster than the card's datasheet allows
    is `implausible`. The record's `parity` is absent: nothing is known of what the call should compute. Precision and compiler
    settings stay as they are, and count as unknown on a GPU.

    Raises what the call raises, ValueError for a regime that the device does not have, for a name or number that cannot be, and
    for arguments on another than the first visible GPU, and RuntimeError if CUPTI recorded nothing.
    """
    backend, device = _home(arguments)
    bench = Bench(backend, device)
    label = str(name or getattr(call, "__name__", "call"))
    precision = yardstick.UNKNOWN if device == "cuda" else "ieee"
    case = Case(label, {}, _dtype(arguments), precision, id=label)
    record = records.new(Cell(case, label, "default"), device) | {"flops": flops, "moved_bytes": moved_bytes}
    plan = Plan(time_s, target, regime, cache)
    plan.on(device)
    bench.backend.reset_peak()
    machine.reset_peak_rss()
    begin = time.perf_counter()
    bench.backend.wait(call(*arguments))
    first_s = time.perf_counter() - begin
    peak = bench.backend.peak_bytes() if device == "cuda" else machine.peak_rss()
    samples = bench.sample(call, [list(arguments)], plan)
    timing = samples.summary()
    record |= {
        "device": machine.describe(bench.device), "prepare_s": 0.0, "compile_s": max(0.0, first_s - timing["median"]),
        "peak_memory_bytes": peak, "timing": timing, "written_bytes": written_bytes(samples.output), "ended": datetime.now(UTC).isoformat(),
    }  # fmt: skip
    add_rates(record, _rates(record["device"], yardstick.needed(case.dtype, precision, flops)))
    return records.plain(record)


def _rates(device: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The yardsticks of those names where an earlier run has left them, else {}: nothing but the call is measured here."""
    if "torch" not in sys.modules:
        return {}
    torch = importlib.import_module("fusebench.backends.torch")
    return yardstick.as_rates(yardstick_cache.read(yardstick.key(device, *torch.versions())), names)


def _home(arguments: tuple[Any, ...]) -> tuple[str, str]:
    """Back end and device of the first argument that belongs to a framework which is loaded already."""

    for name in ("torch", "jax"):
        if name in sys.modules:
            backend = importlib.import_module(f"fusebench.backends.{name}")
            for argument in filter(backend.is_array, arguments):
                return name, backend.device_of(argument)
    return "numpy", "cpu"


def _dtype(arguments: tuple[Any, ...]) -> str:
    """The first argument's dtype by name, or "" where it has none."""
    return str(getattr(arguments[0], "dtype", "")).removeprefix("torch.") if arguments else ""
