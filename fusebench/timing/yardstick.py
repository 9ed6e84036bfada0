"""What this device was measured to do, by Torch and timed like every other call, and what follows from it for a kernel.

Four rates, each by its name in the records:

    copy_gbps                            GB/s, read plus written, of a copy
    read_gbps                            GB/s of a sum, which only reads
    matrix_tflops/<dtype>/<precision>    TFLOP/s of an n×n×n product
    launch_s                             seconds of a call that writes one number: on the GPU its kernel, on the CPU the call

Each is the best of its samples. A yardstick is what one library reached and may be beaten: a share of it may pass 100 %. The
*bound*, from the datasheet, is what nothing on such a card can beat. A time below the bound is `implausible`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusebench.contract import DTYPES, Device
from fusebench.machine import DeviceInfo, datasheet
from fusebench.timing.measure import measure as time_call
from fusebench.timing.plan import Plan

METHOD = 1  # counts the ways in which rates were measured: those of another one are not used
BYTES = {"cpu": 2**29, "cuda": 2**30}  # of what is copied and read: past the last cache of nearly every machine
LARGEST_PRODUCT = 8192
UNKNOWN = "unknown"  # the precision of a callable of which nothing is known


@dataclass(frozen=True)
class Rate:
    """A rate at its best, in the unit that its name ends with; `n` float32 elements, or the side of the matrices; and when it was
    measured, in ISO 8601."""

    value: float
    n: int
    date: str


@dataclass(frozen=True)
class Missing:
    """Why a rate could not be measured."""

    reason: str


@dataclass(frozen=True)
class Rates:
    """The rates that a case was compared with; `matrix_tflops` of n×n×n products in the dtype and precision that `product` names,
    the case's or what it may be computed in (`needed`), None where it has no product; `measured` says when, by the names of the
    fields."""

    copy_gbps: float
    read_gbps: float
    launch_s: float
    measured: Mapping[str, str]
    matrix_tflops: float | None = None
    n: int | None = None
    product: str | None = None


def matrix(dtype: str, precision: str) -> str:
    """The name of a product's rate. Where the precision is unknown, that of the fastest one, TF32, is meant."""
    if dtype == "float32" and precision == UNKNOWN:
        precision = "tf32"
    return f"matrix_tflops/{dtype}/{'ieee' if precision == UNKNOWN else precision}"


def needed(dtype: str, precision: str, flops: int, device: str) -> list[str]:
    """The names of the rates that the best possible time of a case follows from: that of products only if it has FLOPs.

    Numbers of 16 bits can be multiplied in float32, which many CPUs do hundreds of times as fast: there the faster one counts.
    """
    names = ["copy_gbps", "read_gbps", "launch_s"]
    if flops:
        names.append(matrix(dtype, precision))
        names += [matrix("float32", "ieee")] if device == "cpu" and dtype in ("float16", "bfloat16") else []
    return names


def every(device: str) -> list[str]:
    """The names of all rates; "cpu" has no TF32."""
    products = [matrix(dtype, "ieee") for dtype in DTYPES]
    tf32 = [matrix("float32", "tf32")] if device == "cuda" else []
    return ["copy_gbps", "read_gbps", "launch_s", *products[:1], *tf32, *products[1:]]


def measure(backend: Any, device: Device, name: str, budget_s: float) -> tuple[float, int]:
    """The rate of that name at its best, and float32 elements, or the side of the matrices.

    `backend` must be Torch's. Raises RuntimeError where the memory does not suffice, or CUPTI recorded nothing.
    """
    what, *product = name.split("/")
    if product:
        dtype, precision = product
        backend.configure(precision)
        n = _product_size(backend, device, dtype)
        call, arguments = backend.product_call(n, dtype, device)
        work = 2 * n**3 / 1e12
    elif what == "launch_s":
        n, work = 1, 0.0
        call, arguments = backend.launch_call(device)
    else:
        n = BYTES[device.type] // 4
        call, arguments = (backend.copy_call if what == "copy_gbps" else backend.read_call)(n, device)
        work = (8 if what == "copy_gbps" else 4) * n / 1e9
    seconds = min(time_call(backend, call, [arguments], device, Plan(budget_s, target=0)).time)
    return work / seconds if work else seconds, n


def _product_size(backend: Any, device: Device, dtype: str) -> int:
    """A side that fills the device and yet comes to an end: some CPUs crawl in float16."""
    n = 256
    while n < LARGEST_PRODUCT:
        call, arguments = backend.product_call(n, dtype, device)
        backend.wait(call(*arguments))
        begin = time.perf_counter()
        backend.wait(call(*arguments))
        if time.perf_counter() - begin > (0.02 if device.type == "cpu" else 0.002):
            break
        n *= 2
    return n


def key(device: DeviceInfo, torch: str, threads: int) -> str:
    """What rates hold for, in words: device and driver, the Torch that measured, on a CPU its threads, and the method.

    `device` is a record's, `torch` the version. A power limit or fixed clocks are not seen: measure anew after setting them.
    """
    where = f"{device.name}, driver {device.driver}"
    if device.type == "cpu":
        where = f"{device.name}, {threads} threads, {device.driver}"
    return f"{where}, torch {torch}, method {METHOD}"


def as_rates(known: Mapping[str, Rate | Missing], names: Sequence[str]) -> Rates | None:
    """The rates of those names as a record keeps them, of products the fastest; None unless all are known."""
    found = {name: rate for name in names if isinstance(rate := known.get(name), Rate)}
    if len(found) < len(names):
        return None
    three = {name: rate for name, rate in found.items() if "/" not in name}
    copy, read, launch = (three[name].value for name in ("copy_gbps", "read_gbps", "launch_s"))
    rates = Rates(copy, read, launch, {name: rate.date for name, rate in three.items()})
    products = {name: rate for name, rate in found.items() if name not in three}
    if not products:
        return rates
    fastest = max(products, key=lambda name: products[name].value)
    what, _, product = fastest.partition("/")
    rate = products[fastest]
    return replace(
        rates, matrix_tflops=rate.value, n=rate.n, product=product, measured={**rates.measured, what: rate.date}
    )


def best(flops: int, moved_bytes: int, written_bytes: int, rates: Rates | None) -> float | None:
    """The best possible time in seconds by the yardsticks: the longest of launch, traffic and product; None without rates.

    Reading alone is faster than copying, by a tenth or so, and kernels do both in any mix. Each byte written is taken with one
    byte read at the rate of a copy, which moves them so, and what is read beyond that at the rate of reading: a copy's
    best time is then the copy's, that of a kernel which only reads the sum's. What writes more than it reads goes at the
    copy's rate. Compulsory traffic, written part included, is counted once, as in `moved_bytes`.
    """
    if rates is None:
        return None
    copied = min(2 * written_bytes, moved_bytes)
    traffic = copied / (rates.copy_gbps * 1e9) + (moved_bytes - copied) / (rates.read_gbps * 1e9)
    product = flops / (rates.matrix_tflops * 1e12) if rates.matrix_tflops else 0.0
    return max(rates.launch_s, traffic, product)


def bound(flops: int, moved_bytes: int, dtype: str, precision: str, device: DeviceInfo) -> float | None:
    """The seconds below which no time is possible on this card: datasheet peaks, and bytes less what L2 may hold.

    None where we have no datasheet of the device. FLOPs count where it has a rate for the dtype; where the precision is
    unknown, at the highest of its rates, since a callable may narrow its operands. What skips work and still takes longer
    than this is not caught here: a kernel far from the peaks, or one whose bytes fit into L2. Parity catches that.
    """
    peaks = datasheet(device.name)
    if peaks is None:
        return None
    rate = peaks.get("tf32" if dtype == "float32" and precision == "tf32" else dtype)
    if rate and precision == UNKNOWN:
        rate = max(peaks[k] for k in (*DTYPES, "tf32"))
    return max((moved_bytes - peaks["L2"]) / (peaks["GB/s"] * 1e9), flops / (rate * 1e12) if rate else 0.0, 0.0)
