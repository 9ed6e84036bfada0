"""What a program may change in its process that the next one would inherit, by name: what the kernel keeps of a process, what Python
does, and how floats are computed. Each takes microseconds to read; what a framework keeps is its back end's (`settings`).
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import gc
import locale
import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

# Variables that Python, its libraries, frameworks, their compilers and drivers read, but for those that frameworks set themselves.
VARIABLES = (
    "ATEN_", "BLIS_", "CC", "CFLAGS", "CPATH", "CPLUS_", "CUBLAS_", "CUDA_", "CXX", "C_INCLUDE_PATH", "DNNL_", "FLAX_", "FUSEBENCH_", "GLIBC_",
    "GOMP_", "HOME", "JAX_", "KMP_", "LANG", "LC_", "LDFLAGS", "LD_", "LIBRARY_PATH", "MALLOC_", "MKL_", "NUMEXPR_", "NVIDIA_", "OMP_",
    "ONEDNN_", "OPENBLAS_", "PATH", "PYTHON", "PYTORCH_", "TBB_", "TEMP", "TMP", "TORCH", "TRITON_", "TZ", "XDG_", "XLA_",
)  # fmt: skip
# KMP_: scikit-learn's, which Liger's imports bring along; they say whether OpenMP may be there twice, and what it does in a forked child
THEIRS = (
    "CUDA_MODULE_LOADING", "CUDA_ROOT", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_WARM_POOL", "TRITON_CACHE_DIR", "TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_PATH",
)  # fmt: skip
# Torch's compiler keeps threads for its processes, which wait while nothing is compiled, and Python one for shared memory.
COMPILERS = ("torch._inductor", "tqdm._monitor")
HELPERS = (b"torch._inductor", b"torch/_inductor", b"resource_tracker")
IDLE = "concurrent.futures.thread"  # where a thread of a pool waits for work
LIMITS = {
    name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}
TIMERS = {name: getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")}
RECURSIONS = 1000  # Python's own limit, which Torch's compiler raises
STREAMS = ("stdin", "stdout", "stderr")
# What the kernel says of a process: signals that are held back, memory that stays where it is, rights that are given away.
FIELDS = {"Umask": "umask", "SigBlk": "signals held back", "NoNewPrivs": "rights given away", "Seccomp": "system calls forbidden",
          "THP_enabled": "large pages"}  # fmt: skip
FILES = {"oom_score_adj": "who is ended first", "timerslack_ns": "slack of timers"}


def read() -> dict[str, Any]:
    """The state of this process by name; what is equal is the same state."""
    return {
        "CPU affinity": sorted(os.sched_getaffinity(0)), "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "live threads": _threads(), "live processes": _children(), **_of_tasks(), **_of_kernel(), **_of_python(), **_floats(),
        **{f"variable {n}": value for n, value in os.environ.items() if n.startswith(VARIABLES) and n not in THEIRS},
    }  # fmt: skip


def end_watchdogs() -> None:
    """Ends what would end this process later: Python's watchdog, which cannot be seen."""
    faulthandler.cancel_dump_traceback_later()


def _of_tasks() -> dict[str, Any]:
    """The policy of this thread, and what other threads have for themselves, those of libraries among them: a pool keeps the cores that its
    first thread was given."""
    others = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            others.add(_scheduled(int(task.name)))
    return {
        "policy": os.sched_getscheduler(0),
        "threads with cores, niceness or policy of their own": sorted(others - {_scheduled(0)}),
    }


def _scheduled(thread: int) -> tuple[tuple[int, ...], int, int]:
    cores = tuple(sorted(os.sched_getaffinity(thread)))
    return cores, os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)


def _of_kernel() -> dict[str, Any]:
    """Limits, signals, timers, the folder, and which files the standard streams are."""
    limits = {f"limit {name}": resource.getrlimit(number) for name, number in LIMITS.items()}
    signals = {f"{n.name} handler": signal.getsignal(n) for n in signal.Signals}
    timers = {f"timer {name}": signal.getitimer(which)[0] > 0 for name, which in TIMERS.items()}
    streams = {f"file of {name}": _file(number) for number, name in enumerate(STREAMS)}
    numbers = {name: _line(Path("/proc/self", file)) for file, name in FILES.items()}
    taken = {"open files": sum(1 for _ in Path("/proc/self/fd").iterdir()), "MiB of memory": _resident_bytes() // 2**20}
    return {**limits, **signals, **timers, **streams, **numbers, **taken, **_status(), "working folder": _folder()}


def _resident_bytes() -> int:
    return int(_line(Path("/proc/self/statm")).split()[1]) * resource.getpagesize()


def _file(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _folder() -> str | None:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None


def _line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _status() -> dict[str, str]:
    """What the kernel says of the process, such as the umask, for which `os.umask` would set it."""
    lines = (line.partition(":") for line in _line(Path("/proc/self/status")).splitlines())
    return {FIELDS[name]: value.strip() for name, _, value in lines if name in FIELDS}


def _of_python() -> dict[str, Any]:
    streams = {f"sys.{name}": _stream(getattr(sys, name)) for name in STREAMS}
    return {
        **streams, "garbage collection": f"{'on' if gc.isenabled() else 'off'} {gc.get_threshold()}",
        "callbacks of garbage collection": len(gc.callbacks), "reports of garbage collection": gc.get_debug(),
        "frozen objects": gc.get_freeze_count() > 0, "thread switches": sys.getswitchinterval(), "locale": locale.setlocale(locale.LC_ALL),
        "logging": (logging.root.level, logging.root.manager.disable), "stack of threads": threading.stack_size(),
        "flags of dlopen": sys.getdlopenflags(), "environment": type(os.environ).__name__,
        "recursion limit": min(sys.getrecursionlimit(), RECURSIONS), "tracing": sys.gettrace() or threading.gettrace(),
        "profiling": sys.getprofile() or threading.getprofile(), "import path": [folder for folder in sys.path if "site-packages" not in folder],
        "importers": _before(sys.meta_path, "BuiltinImporter"), "importers of folders": _before(sys.path_hooks, "zipimporter"),
        "temporary folder": tempfile.gettempdir(), "fault handler": faulthandler.is_enabled(),
        "modules that are forbidden": [name for name, module in sys.modules.copy().items() if module is None],
        "warnings as errors": sum(action == "error" for action, *_ in warnings.filters),
    }  # fmt: skip


def _before(importers: Iterable[Any], first: str) -> list[str]:
    """The names of those that stand before Python's own first one; libraries put theirs behind it."""
    names = [one.__name__ if isinstance(one, type) else type(one).__name__ for one in importers]
    return names[: names.index(first)] if first in names else names


def _stream(stream: Any) -> Any:
    return "closed" if getattr(stream, "closed", False) else stream


def _floats() -> dict[str, Any]:
    """Flags of the floating-point unit in this thread, which a library sets that was compiled with -ffast-math, and NumPy's own."""
    errors: dict[str, Any] = {f"numpy {kind} errors": what for kind, what in np.geterr().items()}
    errors |= {"numpy handler of errors": np.geterrcall(), "numpy buffer": np.getbufsize()}
    with np.errstate(all="ignore"):
        halved, thirds = np.array([2e-40], np.float32) * np.float32(0.5), 1 / np.array([3.0, -3.0])
    return {"subnormals": "kept" if halved[0] > 0 else "flushed", "rounding": tuple(map(float, thirds)), **errors}


def _threads() -> int:
    """How many threads Python has beside the first one, without those of a compiler, known by what they run and not by their name,
    and those of a pool that has no work."""
    here = threading.get_ident()
    frames = [frame for ident, frame in sys._current_frames().items() if ident != here]
    return _thread._count() - sum(_module(frame) == IDLE or any(map(_compiles, _stack(frame))) for frame in frames)


def _stack(frame: FrameType) -> list[FrameType]:
    return [f for f, _ in traceback.walk_stack(frame)]


def _compiles(frame: FrameType) -> bool:
    return _module(frame).startswith(COMPILERS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _children() -> int:
    """How many processes this one has started that still run, without the helpers of Torch's compiler and of Python."""
    found = 0
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            numbers = task.read_text().split()
            found += sum(not any(h in Path(f"/proc/{n}/cmdline").read_bytes() for h in HELPERS) for n in numbers)
        except OSError:  # it has ended
            continue
    return found
