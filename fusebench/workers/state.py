"""What an implementation may change in its process beside its results, and what the next cell would inherit."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

MODULES = ("builtins", "gc", "math", "time", "numpy", "torch", "torch._C", "torch.cuda", "torch.nn.functional", "torch.profiler",
           "torch.autograd.profiler", "jax", "jax.numpy", "jax.lax", "jax.profiler")  # fmt: skip
CLASSES = (("torch", "Tensor"), ("jax._src.array", "ArrayImpl"))
HARNESS = "fusebench."
OWN = ("torch.manual_seed", "torch.Storage")  # Torch's compiler, and its default dtype, replace them themselves
# Variables that frameworks, their compilers and drivers read; those of caches, which Torch's compiler sets itself, are not among them.
ENVIRONMENT = (
    "CUDA_",
    "CUBLAS_",
    "NVIDIA_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "XLA_",
    "JAX_",
    "TRITON_INTERPRET",
    "TRITON_DEFAULT_",
)
# Torch's compiler keeps threads for its processes, which wait while nothing is compiled, and Python one for shared memory.
COMPILERS = ("torch._inductor", "tqdm._monitor")  # keep threads that wait while nothing is compiled
HELPERS = (b"torch._inductor", b"torch/_inductor", b"resource_tracker")
IDLE = "concurrent.futures.thread"  # where a thread of a pool waits for work
REPLACED = "it replaced {}, which results and clocks depend on"
SHOWN = 6  # of the changes of a cell: to replace a module is hundreds


def read(backend: Any) -> dict[str, Any]:
    """The state of the process by name: cores, threads, children, variables and the framework's settings."""
    cores = sorted(os.sched_getaffinity(0))
    collection = f"{'on' if gc.isenabled() else 'off'} {gc.get_threshold()}"
    variables = {f"variable {name}": value for name, value in os.environ.items() if name.startswith(ENVIRONMENT)}
    return {
        "CPU affinity": cores, "live threads": _threads(), "live processes": _children(), "garbage collection": collection,
        "thread switches": sys.getswitchinterval(), **variables, **backend.settings(),
    }  # fmt: skip


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs, a few words for each; of what was not there before, variables alone are a change."""
    found = [f"{name} {old} → {after.get(name)}" for name, old in before.items() if after.get(name) != old]
    if before:
        found += [
            f"{name} set to {after[name]}" for name in after if name.startswith("variable ") and name not in before
        ]
    return _few(found)


@dataclass(frozen=True)
class Functions:
    """The functions that results and clocks depend on, by name, and the code of those that have some."""

    values: Mapping[str, Any]
    codes: Mapping[str, Any]

    def same(self, name: str, after: Functions) -> bool:
        """Whether it is the same function; methods of a class are made anew each time that one asks for them, and are equal."""
        was, is_ = self.values[name], after.values.get(name)
        if self.codes.get(name) is not after.codes.get(name):
            return False
        return was is is_ or (type(was) is type(is_) and not isinstance(was, type) and bool(was == is_))


def functions() -> Functions:
    """The functions of Python, the frameworks and the harness. Some thousand: nothing is made for each that Python's collection of
    garbage would look at."""
    values = dict(_functions())
    with_code = (FunctionType, MethodType)
    return Functions(values, {name: value.__code__ for name, value in values.items() if type(value) in with_code})


def replaced(before: Functions, after: Functions) -> tuple[str, ...]:
    """The names of those that are not what they were; what was not there before was not replaced."""
    codes, now, codes_now = before.codes, after.values, after.codes
    unlike = [n for n, was in before.values.items() if now.get(n) is not was or codes.get(n) is not codes_now.get(n)]
    return _few([name for name in unlike if not before.same(name, after)])


def _few(found: list[str]) -> tuple[str, ...]:
    return tuple(found if len(found) <= SHOWN else [*found[:SHOWN], f"{len(found) - SHOWN} more"])


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


def _functions() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        for name, value in list(vars(sys.modules[module]).items()) if module in sys.modules else ():
            if callable(value) and (whole := f"{module}.{name}") not in OWN:
                yield whole, value
    for module, name in CLASSES:
        if class_ := getattr(sys.modules.get(module), name, None):
            yield from ((f"{module}.{name}.{method}", getattr(class_, method, None)) for method in dir(class_))
    for module, code in list(sys.modules.items()):
        if module.startswith(HARNESS):
            for name, value in list(vars(code).items()):
                if callable(value) or isinstance(value, ModuleType):
                    yield f"{module}.{name}", value
                if isinstance(value, type) and value.__module__ == module:
                    yield from ((f"{module}.{name}.{m}", own) for m, own in list(vars(value).items()) if _is_code(own))


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)
