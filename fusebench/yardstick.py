"""What this device was measured to do, by Torch's copy and matrix product, timed like every other call.

A kernel's share of the yardstick is the larger of bytes ÷ copy rate and FLOPs ÷ matrix rate, over its time. It may pass
100 %: a yardstick is what one library reached, not a bound.
"""

from __future__ import annotations

import time
from typing import Any

from fusebench import timing
from fusebench.contract import Device
from fusebench.machine import datasheet

COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}  # well past any cache
LARGEST_PRODUCT = 8192


def measure(backend: Any, device: Device, dtype: str, precision: str, budget_s: float) -> dict[str, Any]:
    """{"copy_gbps": GB/s read plus written, "matrix_tflops": TFLOP/s of an n×n×n product, "n": n} of this device at its
    best; `backend` must be Torch's."""
    backend.configure(precision)
    size = COPY_BYTES[device.type]
    call, arguments = backend.copy_call(size // 4, device)
    copy_s = min(timing.measure(backend, call, [arguments], device, timing.Plan(budget_s)).time)
    n = 256
    while n < LARGEST_PRODUCT:  # large enough to fill the device, small enough to end: some CPUs crawl in float16
        call, arguments = backend.product_call(n, dtype, device)
        backend.wait(call(*arguments))
        begin = time.perf_counter()
        backend.wait(call(*arguments))
        if time.perf_counter() - begin > (0.02 if device.type == "cpu" else 0.002):
            break
        n *= 2
    call, arguments = backend.product_call(n, dtype, device)
    matrix_s = min(timing.measure(backend, call, [arguments], device, timing.Plan(budget_s)).time)
    backend.release()
    return {"copy_gbps": 2 * size / copy_s / 1e9, "matrix_tflops": 2 * n**3 / matrix_s / 1e12, "n": n}


def share(flops: int, moved_bytes: int, seconds: float, rates: dict[str, Any] | None) -> float | None:
    """The best possible time by the yardsticks ÷ the time taken, or None without yardsticks."""
    if not rates:
        return None
    return max(moved_bytes / rates["copy_gbps"] / 1e9, flops / rates["matrix_tflops"] / 1e12) / seconds


def bound(flops: int, moved_bytes: int, dtype: str, precision: str, device: dict[str, Any]) -> float | None:
    """The seconds below which no time is possible on this card: datasheet peaks, and bytes less what L2 may hold.

    None where we have no datasheet of the device, or it names no rate for the dtype.
    """
    peaks = datasheet(device["name"])
    if peaks is None or dtype not in peaks:
        return None
    rate = peaks["tf32"] if dtype == "float32" and precision == "tf32" else peaks[dtype]
    return max((moved_bytes - peaks["L2"]) / (peaks["GB/s"] * 1e9), flops / (rate * 1e12), 0.0)
