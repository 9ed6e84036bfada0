"""Where a call makes the host wait for the device: CUDA's calls that wait, as the profiler sees them, and reads of JAX's arrays, each
with the line of Python that the calling thread executed then.

The lines come from a trace function (sys.settrace), on the same clock as the profiler's: time.time_ns().
"""

from __future__ import annotations

import bisect
import contextlib
import linecache
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fusebench.backends.events import API, Mark
from fusebench.backends.protocol import Backend

# copies that are not asynchronous wait, and to free memory waits for the whole device
WAITS = re.compile(
    r"^(cu(da)?(Device|Ctx|Stream|Event)Synchronize|cu(da)?Memcpy(?!.*Async)|cu(da)?Memset(?!.*Async)|cudaFree(Host)?$|cuMemFree)"
)
# by name and file: what waits for an array where Python reads it, and JAX's own function
JAX_WAITS = {
    ("_value", "jax/_src/array.py"): "JAX array read",
    ("_item", "jax/_src/numpy/array_methods.py"): "JAX array read",
    ("block_until_ready", "jax/_src/api.py"): "block_until_ready",
}
METHOD = "block_until_ready"  # of JAX's arrays, which is no function of Python that a trace function hears of


@dataclass(frozen=True)
class Sync:
    """The host waited `count` times, `seconds` in all, in the call `what`, at `place`: `softmax/slow.py:12`, whose text is `line`."""

    what: str
    place: str
    line: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Waited:
    """One wait: what, from when to when in nanoseconds, and the file and line."""

    what: str
    begin: int
    end: int
    file: str
    line: int


class Lines:
    """Within it, the calling thread's lines are noted: of the frame that is innermost in `folders`, or of the outermost one where there
    is none; and where it reads a JAX array, which waits for it."""

    def __init__(self, folders: Sequence[str]):
        self.folders = tuple(folders)
        self.log: list[tuple[int, str, int]] = []  # nanoseconds, file, line
        self.waits: list[Waited] = []
        self._frames: list[FrameType] = []
        self._reading = ""  # the wait that goes on
        self._began = 0

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        array = sys.modules.get("jax._src.array")
        self._array = getattr(array, "ArrayImpl", None)
        if self._array is not None:
            self._method = method = getattr(self._array, METHOD)

            def waiting(array: Any) -> Any:
                begin = time.time_ns()
                done = method(array)
                if not self._reading:
                    self._wait(METHOD, begin)
                return done

            setattr(self._array, METHOD, waiting)
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        if self._array is not None:
            setattr(self._array, METHOD, self._method)

    def at(self, moment_ns: int) -> tuple[str, int]:
        """The file and line at that moment; "" and 0 before the first."""
        place = bisect.bisect_right(self.log, moment_ns, key=lambda entry: entry[0])
        return self.log[place - 1][1:] if place else ("", 0)

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file == __file__:
            return None
        if what := next((w for (function, end), w in JAX_WAITS.items() if name == function and file.endswith(end)), ""):
            if self._reading or getattr(frame.f_locals.get("self"), "_npy_value", None) is not None:
                return None  # a part of a wait, or an array that was read before
            self._reading = what
            self._began = time.time_ns()
            return self._on_step_of_wait
        if self._frames and ("site-packages" in file or not file.startswith(self.folders)):
            return None
        self._frames.append(frame)
        self._note()
        return self._on_step

    def _on_step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._frames.pop()
        if event in ("line", "return") and self._frames:
            self._note()
        return self._on_step

    def _on_step_of_wait(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._wait(self._reading, self._began)
            self._reading = ""
        return self._on_step_of_wait

    def _note(self) -> None:
        frame = self._frames[-1]
        self.log.append((time.time_ns(), frame.f_code.co_filename, frame.f_lineno))

    def _wait(self, what: str, begin: int) -> None:
        self.waits.append(Waited(what, begin, time.time_ns(), *self.at(begin)))


def find(
    backend: Backend, call: Callable[..., Any], arguments: Sequence[Any], device: str, folders: Sequence[str]
) -> tuple[Sync, ...]:
    """The synchronisations of one call."""
    lines = Lines(folders)
    begin = end = 0

    def work(mark: Mark) -> None:
        nonlocal begin, end
        backend.wait(arguments)
        with lines:
            begin = time.time_ns()
            output = call(*arguments)
            end = time.time_ns()
        backend.wait(output)

    if device != "cuda":
        work(contextlib.nullcontext)
        return together(lines.waits, folders)
    recording = backend.record(work)
    waits = list(lines.waits)
    for event in recording.events:
        if event.kind != API or not WAITS.match(event.name):
            continue
        start, stop = (recording.origin_ns + round(t * 1e9) for t in (event.begin, event.end))
        middle = (start + stop) // 2  # of the two clocks' difference it is farthest
        inside = any(w.begin <= middle <= w.end for w in lines.waits)  # what an array's read is made of
        if begin <= middle <= end and not inside:
            waits.append(Waited(event.name, start, stop, *lines.at(middle)))
    return together(waits, folders)


def together(waits: Sequence[Waited], folders: Sequence[str]) -> tuple[Sync, ...]:
    """The waits of one kind and line as one, those that took longest first."""
    found: dict[tuple[str, str, int], list[Waited]] = {}
    for wait in waits:
        found.setdefault((wait.what, wait.file, wait.line), []).append(wait)
    syncs = [
        Sync(what, _named(file, line, folders), linecache.getline(file, line).strip(), len(own), sum(w.end - w.begin for w in own) / 1e9)
        for (what, file, line), own in found.items()
    ]  # fmt: skip
    return tuple(sorted(syncs, key=lambda s: -s.seconds))


def _named(file: str, line: int, folders: Sequence[str]) -> str:
    """`softmax/slow.py:12`, of a file elsewhere its last folder and name; "" where no line is known."""
    if not line:
        return ""
    for folder in folders:
        if Path(file).is_relative_to(folder):
            return f"{Path(file).relative_to(folder)}:{line}"
    return f"{'/'.join(Path(file).parts[-2:])}:{line}"
