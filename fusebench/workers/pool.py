"""The parent's side of the workers: one process a back end and interpreter, restarted after a crash or a time-out.

Messages go over a pipe of their own, because libraries print to stdout; that goes to `worker-<back end>.log` in the run's folder.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fusebench import discovery
from fusebench.errors import Unstored
from fusebench.workers.worker import Bench, answer

HARNESS = Path(__file__).resolve().parents[2]
START_S = 180.0
LOOK_S = 1.0  # how often the parent looks at the log of a worker that works
LOG_BYTES = 64 * 2**20  # of a worker's log: what prints for ever must not fill the disk
HELD_BYTES = 2**31  # an idle worker that holds more than this is ended before another back end's turn


class WorkerLost(Exception):
    """The worker ended or was ended in the middle of a message: `status` is "crashed" or "timeout"."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass
class Worker:
    """A running child: its process, its pipe, what it said of itself, and the device memory it holds while idle."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    log: Path
    hello: dict[str, Any] | None = None
    held_bytes: int = 0
    log_begins: int = 0  # where in the log the present message's output begins

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Sends one message and waits for its answer. Raises WorkerLost, after which the worker is dead, and Unstored."""
        self.log_begins = self.log.stat().st_size
        try:
            self.pipe.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise self._lost() from error
        return self.receive(timeout_s)

    def receive(self, timeout_s: float) -> dict[str, Any]:
        end = time.monotonic() + timeout_s
        try:
            while not self.pipe.poll(max(0.0, min(LOOK_S, end - time.monotonic()))):
                self._cut_log()
                if time.monotonic() >= end:
                    self.kill()
                    raise WorkerLost("timeout", f"no answer within {timeout_s:g} s (timeout_s sets the limit)")
            reply = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError, ValueError) as error:
            raise self._lost() from error
        if reply.get("fatal"):
            self.kill()
            raise WorkerLost("crashed", reply["reason"])
        return _stored(reply)

    def stop(self) -> None:
        """Has the child and whatever it started end, without waiting: a GPU's process takes seconds to go."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def kill(self) -> None:
        """Ends the child and whatever it started."""
        self.stop()
        self.process.wait()
        self.pipe.close()

    def _lost(self) -> WorkerLost:
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        how = "it closed its pipe" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {next((s.name for s in signal.Signals if s == -code), f'signal {-code}')}"
            how += "; the kernel does that when memory runs out" if code == -signal.SIGKILL else ""
        lines = [line for line in self._printed().splitlines() if line.strip()]
        return WorkerLost(
            "crashed",
            f"the worker ended: {how}" + (f" ({lines[-1].strip()[:200]})" if lines and (code or 0) >= 0 else ""),
        )

    def _printed(self) -> str:
        """The end of what the present message made it print."""
        with self.log.open("rb") as log:
            log.seek(max(self.log_begins, self.log.stat().st_size - 2**16))
            return log.read().decode(errors="replace")

    def _cut_log(self) -> None:
        """Takes the end away of what a worker printed too much of; it goes on behind what is left."""
        if self.log.stat().st_size > LOG_BYTES:
            os.truncate(self.log, LOG_BYTES // 2)


def _stored(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply, or Unstored where the disk kept the worker from its work."""
    if reply.get("status") == "unstored":
        raise Unstored(reply["reason"].removeprefix("Unstored: "))
    return reply


class Pool:
    """The workers of a run, by back end and interpreter. Use as a context manager: leaving it ends them all."""

    def __init__(self, device: str, roots: Sequence[Path], log_folder: Path, threads: int | None = None):
        self.device, self.roots, self.log_folder, self.threads = device, [str(r) for r in roots], log_folder, threads
        self.workers: dict[tuple[str, str], Worker] = {}
        self.rates: dict[str, dict[str, Any]] = {}  # yardsticks by name
        self.came_up: set[tuple[str, str]] = set()
        self.hopeless: dict[tuple[str, str], WorkerLost] = {}  # workers that never came up: not tried for every cell

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for worker in self.workers.values():
            worker.kill()

    def stop(self) -> None:
        """Has all workers end, without waiting for it."""
        for worker in self.workers.values():
            worker.stop()

    def start(self, backend: str, python: str) -> None:
        """Starts the worker without waiting for it, so that several can import their frameworks side by side.

        Raises WorkerLost if its interpreter cannot be run.
        """
        if (backend, python) in self.workers:
            return
        ours, theirs = socket.socketpair()
        log = self.log_folder / f"worker-{backend}.log"
        command = [python, "-m", "fusebench.workers.worker", backend, self.device, str(theirs.fileno()), *self.roots]
        try:
            output = log.open("ab")
        except OSError as error:
            raise Unstored(str(error)) from error
        with output, theirs:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[theirs.fileno()],
                    start_new_session=True, env=environment(self.device, self.threads),
                )  # fmt: skip
            except OSError as error:
                ours.close()
                raise WorkerLost("failed", f"the {backend} worker does not start: {error}") from error
        self.workers[backend, python] = Worker(process, Connection(ours.detach()), log)

    def get(self, backend: str, python: str, beside: bool = False) -> Worker:
        """The worker, started if need be and ready. Others give their device memory back, unless it is to work `beside` them.

        Raises WorkerLost if it cannot start.
        """
        for key, other in list(self.workers.items()):
            if not beside and key != (backend, python) and other.held_bytes > HELD_BYTES:
                self.drop(*key)
        if lost := self.hopeless.get((backend, python)):
            raise lost
        if (backend, python) not in self.workers:
            self.start(backend, python)
        worker = self.workers[backend, python]
        if worker.hello is None:
            try:
                hello = worker.receive(START_S)
                if "error" in hello:
                    raise WorkerLost("failed", f"the {backend} worker does not start: {hello['error']}")
            except WorkerLost as lost:
                if (backend, python) in self.came_up and self.device == "cuda":
                    lost = WorkerLost(
                        lost.status, f"{lost.reason} (it did before: does nvidia-smi still show the GPU?)"
                    )
                self.drop(backend, python)
                self.hopeless[backend, python] = lost
                raise lost from None
            self.came_up.add((backend, python))
            worker.hello = hello
        return worker

    def drop(self, backend: str, python: str) -> None:
        """Ends that worker, if it runs; the next `get` starts a fresh one."""
        if worker := self.workers.pop((backend, python), None):
            worker.kill()


class InlineWorker:
    """The same conversation within this process, for a debugger, ncu or compute-sanitizer: no isolation, no time-out."""

    held_bytes = 0

    def __init__(self, backend: str, device: str):
        self.bench = Bench(backend, device)
        self.hello = self.bench.hello()

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        return _stored(answer(self.bench, dict(message)))


class InlinePool:
    """`Pool`'s stand-in for `worker=inline`."""

    def __init__(self, device: str, roots: Sequence[Path], threads: int | None = None):
        self.device = device
        discovery.use_roots(roots)
        self.workers: dict[str, InlineWorker] = {}
        self.rates: dict[str, dict[str, Any]] = {}
        os.environ.update(environment(device, threads))

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def start(self, backend: str, python: str) -> None:
        """Frameworks load at the first `get`."""

    def get(self, backend: str, python: str, beside: bool = False) -> InlineWorker:
        """The back end in this process. Raises WorkerLost if it cannot start, or is the reference, which has its own."""
        if backend == "reference":
            raise WorkerLost("skipped", "the reference on the device has a process of its own")
        if backend not in self.workers:
            try:
                self.workers[backend] = InlineWorker(backend, self.device)
            except (ImportError, RuntimeError) as error:
                raise WorkerLost("failed", f"the {backend} back end does not start: {error}") from error
        return self.workers[backend]

    def drop(self, backend: str, python: str) -> None:
        """An inline worker cannot be lost."""


def environment(device: str, threads: int | None = None) -> dict[str, str]:
    """A worker's environment: the harness on its path, and what has to be set before a framework is imported.

    On the CPU all frameworks and BLAS libraries get the same number of threads: `threads`, or one for each core that this
    process may use. The worker confines itself to as many cores, which is what XLA goes by.
    """
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(HARNESS), *filter(None, [env.get("PYTHONPATH")])])
    env["PYTHONUNBUFFERED"] = "1"
    env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # both frameworks share the card
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA counts devices as NVML does
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compile processes that could outlive a killed worker
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    env.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.10 flips the default: figures would not compare
    if device == "cpu":
        env.update(TRITON_INTERPRET="1", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
        count = str(threads or len(os.sched_getaffinity(0)))
        env.update(OMP_NUM_THREADS=count, OPENBLAS_NUM_THREADS=count, MKL_NUM_THREADS=count)
    return env


def interpreter(pythons: Mapping[str, str | None], implementation: str, backend: str) -> str:
    """Which Python runs it: `worker.python.<implementation>`, else `worker.python.<back end>`, else this one."""
    return pythons.get(implementation) or pythons.get(backend) or sys.executable
