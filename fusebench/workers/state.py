"""What an implementation may change in its process beside its results, and what the next cell would inherit."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

MODULES = ("time", "numpy", "torch", "torch.cuda", "torch.nn.functional", "jax", "jax.numpy", "jax.lax")
CLASSES = (("torch", "Tensor"),)
OWN = ("torch.manual_seed",)  # torch.compile replaces it itself when it is first used
COMPILERS = "torch._inductor"  # keeps threads for its processes, which wait while nothing is compiled
IDLE = "concurrent.futures.thread"  # where a thread of a pool waits for work
SHOWN = 6  # of the changes of a cell: to replace a module is hundreds


def read(backend: Any) -> dict[str, Any]:
    """The state of the process by name: cores, threads, the framework's settings, and the functions that its results and its
    clock depend on."""
    cores = sorted(os.sched_getaffinity(0))
    return {"CPU affinity": cores, "live threads": _threads(), **backend.settings(), **_functions()}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs, a few words for each; what was not there before is no change."""
    found = [_change(name, old, after.get(name)) for name, old in before.items() if not _same(old, after.get(name))]
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


def _functions() -> dict[str, Callable[..., Any]]:
    found = {}
    for module in MODULES:
        for name, value in vars(sys.modules[module]).items() if module in sys.modules else ():
            if callable(value) and f"{module}.{name}" not in OWN:
                found[f"{module}.{name}"] = value
    for module, name in CLASSES:
        if module in sys.modules:
            class_ = getattr(sys.modules[module], name)
            found |= {f"{module}.{name}.{method}": getattr(class_, method) for method in dir(class_)}
    return found


def _same(old: Any, new: Any) -> bool:
    """Whether nothing was replaced; methods of a class are made anew each time that one asks for them, and are equal."""
    return old is new or (type(old) is type(new) and bool(old == new))


def _change(name: str, old: Any, new: Any) -> str:
    return f"{name} replaced" if callable(old) else f"{name} {old} → {new}"
