"""The child process that builds and times cells of one framework: `python -m fusebench.workers.worker` with one end of a pipe.

It reads one JSON message at a time and answers each with one. The reference is not its business: it never imports a
kernel.py, so an implementation cannot borrow the answer. `Bench` is the same path for `worker=inline` and `fusebench.measure`.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fusebench import discovery, inputs, machine
from fusebench.contract import Case, Device
from fusebench.errors import Unstored
from fusebench.timing import yardstick
from fusebench.timing.measure import measure
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Ring, Samples
from fusebench.workers import guard, memory

FULL_BYTES = 64 * 2**20  # a disk with less than this has no room for a compiler's work
NO_SPACE = os.strerror(errno.ENOSPC)


class Bench:
    """One back end taken hold of, and at most one cell in hand. Every method takes and returns what JSON can carry."""

    def __init__(self, backend: str, device: str):
        self.backend = importlib.import_module(f"fusebench.backends.{backend}")
        self.name = backend
        self.device: Device = self.backend.start(device)
        self.call: Any = None
        self.ring = Ring([], frozenset(), self.backend.copy)
        self.unchanged: list[int] = []  # places of the arguments that a call must leave alone

    def hello(self) -> dict[str, Any]:
        flushed = (
            float(self.backend.get(self.backend.half(self.backend.put(np.array([2e-40], np.float32), self.device)))[0])
            == 0
        )
        return {
            "device": machine.describe(self.device), "packages": machine.packages(),
            "python": sys.version.split()[0], "flushes_subnormals": flushed,
        }  # fmt: skip

    def build(
        self, case: dict[str, Any], implementation: str, variant: str, names: list[str],
        sets: list[list[list[str]]], folder: str,
    ) -> dict[str, Any]:  # fmt: skip
        """Builds the cell and runs it once: `skipped` with a reason, or `ok` with the seconds and the output's files.

        `names` are those of the inputs, `sets` their files in each set; one that is the same in all sets is a weight.
        """
        self.call = None
        the_case = Case(**case)
        found = self._implementation(the_case.kernel, implementation)
        reason = found.missing()
        if reason is None:
            module = discovery.load_implementation(the_case.kernel, implementation)
            reason = getattr(module, "skip", lambda *_: None)(the_case, variant, self.device)
        if reason:
            return {"status": "skipped", "reason": str(reason)}
        self.backend.configure(the_case.precision)
        self.backend.reset_peak()
        machine.reset_peak_rss()
        distinct = {tuple(file) for files in sets for file in files}
        arrays = {f: self.backend.put(inputs.load([f], Path(folder))[0], self.device) for f in distinct}
        stored = [[arrays[tuple(file)] for file in files] for files in sets]
        in_place = [names.index(name) for name in found.in_place.get(variant, ())]
        varying = [place for place, files in enumerate(zip(*sets, strict=True)) if files[0] != files[-1]]
        self.backend.wait(list(arrays.values()))
        begin = time.perf_counter()
        prepared = list(getattr(module, "prepare", lambda *_: ())(the_case, variant, *stored[0]))
        self.backend.wait(prepared)
        prepare_s = time.perf_counter() - begin
        self.ring = Ring([[*s, *prepared] for s in stored], frozenset(varying + in_place), self.backend.copy)
        self.unchanged = [place for place in range(len(stored[0]) + len(prepared)) if place not in in_place]
        arguments, kept = self.ring[0], [self.backend.copy(a) for a in self.ring.sets[0]]
        begin = time.perf_counter()
        self.call = module.build(the_case, variant, self.device)
        own_kernels = {"triton", "cuda.core"} & set(found.requires)  # it is here for these, not for operators
        output, borrowed = self.backend.watch(self.call, arguments) if own_kernels else (self.call(*arguments), [])
        self.backend.wait(output)
        compile_s = time.perf_counter() - begin
        if borrowed:
            reason = f"computes with {', '.join(borrowed)} beside its own kernels, which are what it is here for"
            return {"status": "failed", "reason": reason}
        if strange := [type(o).__name__ for o in self._list(output) if not self.backend.is_array(o)]:
            reason = f"the call returned {strange[0]}, expected an array or a tuple of arrays"
            return {"status": "failed", "reason": reason}
        peak = self.backend.peak_bytes() if self.device.type == "cuda" else machine.peak_rss()
        if changed := self._changed(arguments, kept):
            return {"status": "wrong", "reason": f"the call changed {changed}; it must leave it alone"}
        return {"status": "ok", "prepare_s": prepare_s, "compile_s": compile_s, "points": list(found.variants[variant]),
                "peak_memory_bytes": peak, "written_bytes": written_bytes(output), "outputs": self._save(output, Path(folder), "first")}  # fmt: skip

    def again(self, folder: str) -> dict[str, Any]:
        """Runs the cell in hand twice more: on the first set, to see whether the output is the same bit for bit, and on the
        last set written over the first one's buffers, which a call that remembers results does not notice."""
        first = self._list(self.call(*self.ring[0]))
        arguments = self.ring[0]
        second = self._list(self.call(*arguments))
        self.backend.wait([first, second])
        differing = [pair for pair in zip(first, second, strict=True) if not self.backend.same(*pair)]
        spread = _spread([(self.backend.get(a), self.backend.get(b)) for a, b in differing])
        last = self.ring.sets[-1]
        arguments = [
            self.backend.overwrite(a, last[place]) if place in self.ring.copied else a
            for place, a in enumerate(arguments)
        ]
        output = self.call(*arguments)
        self.backend.wait(output)
        return {"status": "ok", "nondeterministic": spread, "outputs": self._save(output, Path(folder), "again")}

    def time(self, plan: dict[str, Any], folder: str) -> dict[str, Any]:
        """Times the cell in hand; the output of the last timed call on the last input set comes back to be checked, unless
        `folder` is empty."""
        samples = self.sample(self.call, self.ring, Plan(**plan))
        if changed := self._changed(samples.arguments, self.ring.sets[-1]):
            return {"status": "wrong", "reason": f"a timed call changed {changed}; it must leave it alone"}
        outputs = self._save(samples.output, Path(folder), "timed") if folder else []
        return {"status": "ok", "timing": samples.summary(), "outputs": outputs}

    def sample(self, call: Any, ring: Ring | Sequence[Sequence[Any]], plan: Plan) -> Samples:
        """Times any callable on this back end."""
        return measure(self.backend, call, ring, self.device, plan)

    def usable(self) -> bool:
        """Whether the device still does what it is told."""
        try:
            self.backend.get(self.backend.put(np.ones(1, np.float32), self.device))
            return True
        except Exception:  # each framework has an error of its own for a lost device
            return False

    def release(self) -> dict[str, Any]:
        """Lets go of the cell in hand and says how much device memory stays held all the same."""
        self.call, self.ring = None, Ring([], frozenset(), self.backend.copy)
        return {"held_bytes": self.backend.release()}

    def yardstick_key(self) -> dict[str, Any]:
        """What the rates that this worker measures hold for; of Torch's worker, like the next."""
        return {"key": yardstick.key(machine.describe(self.device), *self.backend.versions())}

    def yardstick(self, name: str, budget_s: float) -> dict[str, Any]:
        """One rate of this device, by its name in yardstick.py."""
        entry = yardstick.measure(self.backend, self.device, name, budget_s)
        self.backend.release()
        return entry

    def _implementation(self, kernel: str, name: str) -> discovery.Implementation:
        package = sys.modules["implementations"]
        file = next(f for root in package.__path__ if (f := Path(root) / kernel / f"{name}.py").exists())
        return discovery.read_implementation(kernel, file)

    def _changed(self, arguments: Sequence[Any], kept: Sequence[Any]) -> str:
        """Which argument a call changed that it must leave alone, or ""."""
        for place in self.unchanged:
            if not self.backend.same(arguments[place], kept[place]):
                return f"its argument {place}"
        return ""

    def _list(self, output: Any) -> list[Any]:
        return list(output) if isinstance(output, tuple | list) else [output]

    def _save(self, output: Any, folder: Path, stem: str) -> list[list[str]]:
        return inputs.save([self.backend.get(o) for o in self._list(output)], folder, stem)


def written_bytes(output: Any) -> int:
    """Bytes of the arrays that a call returns: the part of its compulsory traffic that is written."""
    return sum(int(getattr(o, "nbytes", 0)) for o in (output if isinstance(output, tuple | list) else [output]))


def _spread(differing: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any] | None:
    """How far outputs of two calls on the same inputs are apart, or None if they are the same bit for bit."""
    if not differing:
        return None
    wide = [(a.astype(np.float64), b.astype(np.float64)) for a, b in differing]
    with np.errstate(all="ignore"):
        return {
            "elements": int(sum((~((a == b) | (np.isnan(a) & np.isnan(b)))).sum() for a, b in wide)),
            "max_abs": float(max(np.nanmax(np.abs(a - b), initial=0.0) for a, b in wide)),
        }


def answer(bench: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Does what a message asks; an exception of the implementation's becomes `failed`, with its last lines.

    After an illegal memory access nothing more runs on the device in this process: then the answer is `fatal`. A full disk
    is nobody's fault: the answer is `unstored`.
    """
    folder = message.get("folder", ".")
    try:
        return getattr(bench, message.pop("do"))(**message)
    except (Exception, SystemExit) as error:  # an implementation may raise anything; the cell fails, the worker lives
        failed = describe(error)
        if isinstance(error, Unstored) or (NO_SPACE in failed["traceback"] and _is_full(folder)):
            return {"status": "unstored", "reason": failed["reason"]}
    return failed | {"fatal": not _usable(bench)}


def _usable(bench: Any) -> bool:
    """Whether the device still works, once it has its memory back: one that is merely full is not lost."""
    gc.collect()  # what stood in the traceback's frames may hold some
    try:
        bench.release()
    except Exception:  # each framework has an error of its own for a lost device
        return False
    return bool(bench.usable())


def _is_full(folder: str) -> bool:
    """Whether a disk is full that compilers and their caches write to, or the run's."""
    places = [p for p in (folder, tempfile.gettempdir(), Path.home()) if Path(p).is_dir()]
    return any(shutil.disk_usage(place).free < FULL_BYTES for place in places)


def describe(error: BaseException) -> dict[str, Any]:
    """`failed` with one line that names the error and where it was raised, and the end of the traceback."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"at {Path(where.filename).name}:{where.lineno}"
    if isinstance(error, MemoryError):  # Python's own says nothing
        place = f"the host's memory is full, {place}"
    message = (str(error).strip().splitlines() or [place])[0]
    reason = f"{type(error).__name__}: {message}"[:500]
    text = "".join(traceback.format_exception(error))
    return {"status": "failed", "reason": reason, "traceback": text[-8000:]}


def main() -> None:
    """Serves messages until the parent closes the pipe or dies."""
    backend, device, fd, *roots = sys.argv[1:]
    # SIGKILL of the parent must leave no orphan, not even one in an endless loop
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if device == "cpu" and sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[: int(os.environ["OMP_NUM_THREADS"])])
    pipe = Connection(int(fd))
    memory.go_first()
    try:
        discovery.use_roots([Path(root) for root in roots])
        if backend == "reference":
            bench: Any = importlib.import_module("fusebench.parity.reference").Reference(device)
        else:
            sys.meta_path.insert(0, guard.Guard(backend, [Path(root) for root in roots]))
            bench = Bench(backend, device)
        pipe.send_bytes(json.dumps(bench.hello()).encode())
    except Exception as error:  # the parent shows the line; the log has the traceback
        traceback.print_exc()
        pipe.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    while True:
        try:
            message = json.loads(pipe.recv_bytes())
        except EOFError:
            os._exit(0)  # frameworks' own exit handlers may hang on a broken device
        reply = answer(bench, message)
        pipe.send_bytes(json.dumps(reply).encode())
        if reply.get("fatal"):
            os._exit(1)


if __name__ == "__main__":
    main()
