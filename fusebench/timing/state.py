"""What state the device is in while it is timed: clocks, power, temperature and throttling of a GPU, threads and load of a CPU."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fusebench import machine
from fusebench.timing.summary import StateRange

# Bits of NVML's clock event reasons. A GPU that is slowed down by its hardware or by heat is not the one that is measured; one
# at its power limit is: large products run there, so it is recorded.
SLOWDOWNS = {0x8: "hardware slowdown", 0x20: "thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
POWER_CAP = 0x4
DEFAULT_CACHE_BYTES = 64 * 2**20  # of a CPU whose last cache's size is not known


@dataclass(frozen=True)
class State:
    """One reading. MHz, W and °C of a GPU; MHz, the load of the last minute and threads of a CPU; None is not known."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    power_capped: bool | None = None
    slowdown: str | None = None
    cpu_mhz: float | None = None
    load: float | None = None
    threads: int | None = None


def read(device: str) -> State:
    """The state of "cuda" or "cpu" now; what does not answer stays None."""
    return _gpu() if device == "cuda" else _cpu()


def energy_j() -> float | None:
    """Joules that the GPU has taken since the driver was loaded, or None where NVML does not count them."""
    return _ask(lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3)


def summary(states: Sequence[State]) -> StateRange:
    """Lowest and highest of each figure over the readings, and whether any was power-capped."""
    found: dict[str, Any] = {}
    for name in (f.name for f in fields(StateRange)):
        if values := [v for v in (getattr(s, name) for s in states) if v is not None]:
            found[name] = any(values) if name == "power_capped" else (min(values), max(values))
    return StateRange(**found)


def waited_s() -> float | None:
    """Seconds that the threads of this process have been ready to run and waited for a core, so far; None where the kernel does not
    count them. They wait where other processes compute."""
    waited = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            waited += int(task.read_text().split()[1])
    return waited / 1e9 if Path("/proc/self/schedstat").exists() else None


def cool_down() -> None:
    """Leaves the GPU alone for a moment."""
    time.sleep(1.0)


def cache_bytes() -> int:
    """The size of the CPU's last cache."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        sizes.append(int(text.rstrip("KM")) * {"K": 2**10, "M": 2**20}.get(text[-1], 1))
    return max(sizes, default=DEFAULT_CACHE_BYTES)


def _ask(question: Any) -> Any:
    """The answer of NVML on this process's GPU, or None: drivers and cards differ in what they tell."""
    import pynvml

    try:
        gpu = machine.gpu_handle()
        return None if gpu is None else question(pynvml, gpu)
    except (pynvml.NVMLError, OSError):
        return None


def _gpu() -> State:
    reasons = _ask(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
    power = _ask(lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu))
    return State(
        sm_mhz=_ask(lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
        memory_mhz=_ask(lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
        power_w=None if power is None else power / 1e3,
        temperature_c=_ask(lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
        power_capped=None if reasons is None else bool(reasons & POWER_CAP),
        slowdown=", ".join(name for bit, name in SLOWDOWNS.items() if (reasons or 0) & bit) or None,
    )


def _cpu() -> State:
    import psutil

    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        frequency = None
    return State(
        cpu_mhz=round(frequency.current) if frequency else None,
        load=round(os.getloadavg()[0], 2),
        threads=len(os.sched_getaffinity(0)),
    )
