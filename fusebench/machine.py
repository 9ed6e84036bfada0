"""What this machine is: its GPU, its CPU, its packages and the commit, as the records keep them. Loads no framework."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fusebench.contract import Device
from fusebench.memory import kilobytes

PACKAGES = (
    "fusebench", "torch", "triton", "jax", "jaxlib", "flax", "jax-triton", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy"
)  # fmt: skip

# Datasheet peaks (dense): GB/s, TFLOP/s and bytes of L2, from the vendor's pages, L2 as the
# driver reports it where that is more. No kernel on such a card can be faster.
DATASHEETS: dict[str, dict[str, float]] = {
    "H200": {"GB/s": 4800, "L2": 63e6, "float16": 989.5, "bfloat16": 989.5, "tf32": 494.7, "float32": 66.9},
    "H100 80GB HBM3": {"GB/s": 3352, "L2": 52.5e6, "float16": 989.5, "bfloat16": 989.5, "tf32": 494.7, "float32": 66.9},
    "A100-SXM4-80GB": {"GB/s": 2039, "L2": 42e6, "float16": 312, "bfloat16": 312, "tf32": 156, "float32": 19.5},
    "A100-SXM4-40GB": {"GB/s": 1555, "L2": 42e6, "float16": 312, "bfloat16": 312, "tf32": 156, "float32": 19.5},
}


def datasheet(device_name: str) -> dict[str, float] | None:
    """The peaks of the card of that name, or None where we have no datasheet and so know no bound."""
    # whole words: a GH200 is another card
    return next((p for name, p in DATASHEETS.items() if re.search(rf"\b{name}\b", device_name)), None)


@cache
def gpu_handle() -> Any:
    """NVML's handle of the first NVIDIA GPU that is visible to this process, or None; asks the driver, not a framework.

    Numbers in CUDA_VISIBLE_DEVICES are NVML's where CUDA_DEVICE_ORDER=PCI_BUS_ID, which workers are started with.
    """
    import pynvml

    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        pynvml.nvmlInit()
        if first.startswith(("GPU-", "MIG-")):
            return _by_uuid(first)
        return pynvml.nvmlDeviceGetHandleByIndex(int(first)) if first.isdigit() else None
    except (OSError, pynvml.NVMLError):
        return None


def _by_uuid(uuid: str) -> Any:
    """The handle of a GPU whose UUID begins so, as CUDA takes it where only one does; NVML wants the whole."""
    import pynvml

    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = [handle for handle in handles if str(pynvml.nvmlDeviceGetUUID(handle)).startswith(uuid)]
        return found[0] if len(found) == 1 else None


@cache
def gpu() -> dict[str, str] | None:
    """Name and driver version of the first NVIDIA GPU that is visible, or None."""
    import pynvml

    try:
        if (handle := gpu_handle()) is None:
            return None
        return {"name": str(pynvml.nvmlDeviceGetName(handle)), "driver": str(pynvml.nvmlSystemGetDriverVersion())}
    except (OSError, pynvml.NVMLError):
        return None


@cache
def gpu_bytes() -> int:
    """The memory of that GPU, 0 where there is none or the driver does not say."""
    import pynvml

    try:
        return 0 if (handle := gpu_handle()) is None else int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except (OSError, pynvml.NVMLError):
        return 0


def others_on_gpu() -> int:
    """How many other programs use that GPU, by the driver's word: none that this process has started."""
    import psutil
    import pynvml

    try:
        if (handle := gpu_handle()) is None:
            return 0
        own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        return len({process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)} - own)
    except (OSError, pynvml.NVMLError, psutil.Error):
        return 0


def cpu_name() -> str:
    """The processor's model, as Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "CPU",
    )


@cache
def packages() -> dict[str, str]:
    """Versions of the packages that decide a figure, of those that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def git_commit(folder: Path, *parts: str) -> str | None:
    """The commit that `folder` is at, with `+` behind it where its files (or those of its `parts`) differ from it, new
    ones included; None outside a checkout."""
    ask = ["git", "-C", str(folder)]
    try:
        head = subprocess.run([*ask, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run([*ask, "status", "--porcelain", "--", *(parts or ".")], capture_output=True, check=True)
        return head + ("+" if dirty.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def reset_peak_rss() -> int | None:
    """Begins the count of the highest resident set of this process, and returns the present one in bytes; None where /proc
    does not allow it, or takes the request and does nothing: `peak_rss` would then tell of earlier work."""
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")
        highest, present = (kilobytes(status, field) for field in ("VmHWM", "VmRSS"))
    except OSError:  # not Linux, or a container that forbids it
        return None
    if highest is None or present is None or highest > present + 4096:  # memory freed in between is less
        return None
    return highest * 1024


def peak_rss() -> int | None:
    """The highest resident set of this process in bytes since `reset_peak_rss`, or None where /proc does not tell."""
    highest = kilobytes(Path("/proc/self/status"), "VmHWM")
    return None if highest is None else highest * 1024


@dataclass(frozen=True)
class DeviceInfo:
    """The device of a record. `type` is "cpu" or "cuda"; the rest is known once a worker has answered: its name, its compute
    capability, the driver's version (on a CPU the kernel's), and of the host the cores and the threads that may be used."""

    type: str
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    driver: str = ""
    multiprocessors: int = 0
    cores: int = 0
    threads: int = 0


def describe(device: Device) -> DeviceInfo:
    """The device as a record keeps it."""
    driver = (gpu() or {}).get("driver", "") if device.type == "cuda" else platform.release()
    cores, threads = os.cpu_count() or 0, len(os.sched_getaffinity(0))
    return DeviceInfo(device.type, device.name, device.capability, driver, device.multiprocessors, cores, threads)
