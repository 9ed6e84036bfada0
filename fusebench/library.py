"""`fusebench.measure`: the timing of the harness for any callable, from a script of one's own."""

from __future__ import annotations

import functools
import importlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fusebench import machine, provenance
from fusebench.backends import protocol
from fusebench.cell import rated, with_timing
from fusebench.contract import Case, Cell
from fusebench.errors import UsageError, unknown
from fusebench.records.record import Build, Record, Work
from fusebench.timing import yardstick, yardstick_cache
from fusebench.timing.plan import Plan
from fusebench.workers.bench import Bench
from fusebench.workers.cores import check_threads, confined
from fusebench.workers.outputs import written_bytes


def measure(
    call: Callable[..., Any],
    *arguments: Any,
    name: str | None = None,
    time_s: float = 0.5,
    target: float = 0.01,
    regime: str = "auto",
    cache: str = "auto",
    flops: int | None = None,
    moved_bytes: int | None = None,
    backend: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    **keywords: Any,
) -> Record:
    """Times `call(*arguments, **keywords)` as `fusebench bench` times a cell and returns the same record.

    A keyword argument that has the name of one of ours, such as `device`, goes into the call by `functools.partial` or a lambda.
    The arrays among the arguments, also within lists, dictionaries and JAX's pytrees, decide the back end and the device. A
    callable that gets none, because it holds them itself, needs `backend`: "torch", "jax", or "numpy" for plain Python; its
    `device` is then "cpu" or "cuda", by default the GPU where the back end sees one.
    On a GPU the time is CUPTI's, each call queued behind an L2 flush; on the CPU it is the synchronised wall clock; `regime`
    and `cache` choose another (timing/plan.py). `time_s` is the sampling budget in seconds, which ends earlier where the interval
    of the median is within ± `target`; `flops` and `moved_bytes` of one call, where given, add TFLOP/s and GB/s, and the best
    time by the yardsticks that earlier runs have left (`fusebench yardsticks`); what is not known is None.
    On a CPU `threads` is the number of cores that the call gets, and of Torch's threads; by default all stays as it is. Pools that
    have started already (XLA, NumPy's BLAS) keep their threads, which then share these cores. What is faster than the card's datasheet allows
    is `implausible`. The record's `parity` is empty: nothing is known of what the call should compute. Precision and compiler
    settings stay as they are, and count as unknown on a GPU.

    Raises what the call raises, ValueError for what is no function, for FLOPs or bytes that are no number of at least 0, where no argument tells the back end, for a regime that the device does not have, for a name or number that cannot
    be, for `threads` on a GPU, and for arguments on another than the first visible GPU, and RuntimeError if CUPTI recorded nothing.
    """
    if not callable(call):
        raise UsageError(f"call is {call!r:.60}: expected a function")
    for what, amount in (("flops", flops), ("moved_bytes", moved_bytes)):
        if amount is not None and not (isinstance(amount, int | float | np.number) and 0 <= amount < math.inf):
            raise UsageError(f"{what} is {amount!r:.60}: expected None or a number of at least 0")
    backend, device = _back_end((arguments, keywords), backend, device)
    threads = check_threads(threads)
    if threads and device != "cpu":
        raise UsageError(f"threads is {threads}: expected None on a GPU, whose time the host's threads do not change")
    bench = Bench(backend, device)
    label = str(name or getattr(call, "__name__", "call"))
    precision = yardstick.UNKNOWN if device == "cuda" else "ieee"
    case = Case(label, {}, _dtype((arguments, keywords)), precision, id=label)
    plan = Plan(time_s, target, regime, cache)
    plan.on(device)
    timed = functools.partial(call, **keywords) if keywords else call
    with confined(threads):
        peak = bench.peak()
        begin = time.perf_counter()
        bench.backend.wait(timed(*arguments))
        first_s = time.perf_counter() - begin
        peak_bytes = peak()
        samples = bench.sample(timed, [list(arguments)], plan)
        described = machine.describe(bench.device)
        rates = _rates(described, case, flops or 0)
    build = Build(0.0, first_s, peak_bytes, written_bytes(samples.output))
    record = provenance.new_record(Cell(case, label, "default"), device)
    environment = replace(record.environment, device=described)
    ended = datetime.now(UTC).isoformat()
    record = replace(
        record, environment=environment, work=Work(flops, moved_bytes), build=build, time_s=time_s, ended=ended
    )
    return rated(with_timing(record, samples.summary()), rates)


def _rates(device: machine.DeviceInfo, case: Case, flops: int) -> yardstick.Rates | None:
    """The yardsticks of the case where an earlier run has left them, else None: nothing but the call is measured here."""
    if "torch" not in sys.modules:
        return None
    torch = importlib.import_module("fusebench.backends.torch")
    known = yardstick_cache.read(yardstick.key(device, *torch.versions()))
    return yardstick.as_rates(known, yardstick.needed(case.dtype, case.precision, flops, device.type))


def _back_end(arguments: tuple[Any, ...], backend: str | None, device: str | None) -> tuple[str, str]:
    """Back end and device: those that were named, or of the first array of a framework that is loaded already."""
    known = sorted(protocol.found(), key="numpy".__eq__)  # last: frameworks take NumPy's arrays too
    if backend not in (None, *known):
        raise unknown("backend", backend, known)
    if device not in (None, "cpu", "cuda"):
        raise unknown("device", device, ("cpu", "cuda"))
    for name in [backend] if backend else [n for n in known if n in sys.modules]:
        module = importlib.import_module(f"fusebench.backends.{name}")
        for array in filter(module.is_array, _leaves(arguments)):
            found = module.device_of(array)
            if device not in (None, found):
                raise ValueError(f"device is {device!r}, but an argument lies on {found!r}")
            return name, found
    if backend is None:
        raise ValueError(
            f"no argument is an array: name the back end that the call computes with, backend= one of {', '.join(known)}; "
            "numpy is for plain Python as well"
        )
    return backend, device or ("cuda" if backend != "numpy" and machine.gpu() else "cpu")


def _leaves(value: Any) -> list[Any]:
    """What stands in lists, tuples and dictionaries, and in JAX's pytrees where JAX is loaded."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return importlib.import_module("jax").tree.leaves(value) if "jax" in sys.modules else [value]


def _dtype(arguments: tuple[Any, ...]) -> str:
    """The dtype of the first array by name, or "" where there is none."""
    found = (str(leaf.dtype) for leaf in _leaves(arguments) if hasattr(leaf, "dtype"))
    return next(found, "").removeprefix("torch.")
