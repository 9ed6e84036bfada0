"""The parent's side of the workers: one process a back end and interpreter, restarted after a crash or a time-out.

Messages go over a pipe of their own, because libraries print to stdout; that goes to `worker-<back end>.log` in the run's folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import msgspec

from fusebench import discovery
from fusebench.errors import StorageError
from fusebench.machine import gpu_bytes
from fusebench.timing.yardstick import Missing, Rate
from fusebench.workers import protocol
from fusebench.workers.answers import answer
from fusebench.workers.bench import Bench
from fusebench.workers.cores import Cores
from fusebench.workers.worker import PROFILES

HARNESS = Path(__file__).resolve().parents[2]
START_S = 180.0
END_S = 10.0  # for a worker that closed its pipe
LOOK_S = 1.0  # how often the parent looks at the log of a worker that works
LOG_BYTES = 64 * 2**20  # of a worker's log: what prints for ever must not fill the disk
R = TypeVar("R", bound=protocol.Message)
ANSWER_BYTES, PART_S = 2**28, 5  # of an answer at most; how long the rest of one that has begun may take
# An idle worker that holds more than this, and than this share of a GPU's memory, is ended before another back end's turn: to start it again
# takes some eight seconds (seen on an H200: a fifth of a run that went to and fro between Torch and JAX).
HELD_BYTES, HELD_SHARE = 2**31, 1 / 8


class WorkerLost(Exception):
    """The worker ended or was ended in the middle of a message: `status` is "crashed" or "timeout"."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Unasked(WorkerLost):
    """The worker said what it was not asked, so that nothing that it said counts: its implementation may have written to the pipe."""

    def __init__(self) -> None:
        super().__init__(
            "failed", "the worker sent another answer than it was asked for: an implementation has no part in that"
        )


@dataclass
class Worker:
    """A running child: its process, its pipe, what it said of itself, and the device memory it holds while idle."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    log: Path
    info: protocol.WorkerInfo | None = None
    held_bytes: int = 0
    used: bool = False  # whether it was to load an implementation
    log_begins: int = 0  # where in the log the present message's output begins

    def ask(self, request: protocol.Request, expected: type[R], timeout_s: float) -> R | protocol.Refused:
        """Sends one message and waits for its reply. Raises WorkerLost, after which the worker is dead, and StorageError."""
        self.log_begins = self._log_bytes()
        self.used = self.used or isinstance(request, protocol.BuildCell)
        try:
            if self.pipe.poll(0):  # the end of a pipe that is closed, or words that nobody waits for
                self.pipe.recv_bytes()
                raise self._unasked()
            self.pipe.send_bytes(protocol.encode(request))
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return self.receive(expected, timeout_s)

    def get(self, request: protocol.Request, expected: type[R], timeout_s: float) -> R:
        """`ask` for what no worker refuses. Raises WorkerLost where it did."""
        return _granted(self.ask(request, expected, timeout_s))

    def receive(self, expected: type[R], timeout_s: float) -> R | protocol.Refused:
        end = time.monotonic() + timeout_s
        try:
            while not self.pipe.poll(max(0.0, min(LOOK_S, end - time.monotonic()))):
                self._cut_log()
                if has_ended(self.process) and not self.pipe.poll(0):  # what it started may hold its end of the pipe
                    raise self._lost()
                if time.monotonic() >= end:
                    self.kill()
                    raise WorkerLost("timeout", f"no answer within {timeout_s:g} s (timeout_s sets the limit)")
            reply = protocol.decode_reply(self.pipe.recv_bytes(ANSWER_BYTES), expected)
        except (EOFError, ConnectionError) as error:
            raise self._lost() from error
        except OSError as error:  # part of an answer, or one of an impossible length
            raise (self._lost() if has_ended(self.process) else self._unasked()) from error
        except msgspec.MsgspecError as error:
            raise self._unasked() from error
        if isinstance(reply, protocol.Refused) and reply.fatal:
            self.kill()
            raise WorkerLost("crashed", reply.reason)
        return _stored(reply)

    def stop(self) -> None:
        """Has the child and whatever it started end, without waiting: a GPU's process takes seconds to go."""
        if self.process.returncode is not None:  # waited for: its number may be another's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends the child and whatever it started."""
        self.stop()
        self.process.wait()
        self.pipe.close()

    def _unasked(self) -> Unasked:
        self.kill()
        return Unasked()

    def _lost(self) -> WorkerLost:
        end = time.monotonic() + END_S
        while not (ended := has_ended(self.process)) and time.monotonic() < end:
            time.sleep(0.01)
        self.kill()  # while its number is still its own: the group may have members that live on
        code = self.process.returncode if ended else None
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
        try:
            with self.log.open("rb") as log:
                log.seek(max(self.log_begins, self._log_bytes() - 2**16))
                return log.read().decode(errors="replace")
        except FileNotFoundError:  # somebody has taken it away
            return ""

    def _cut_log(self) -> None:
        """Takes the end away of what a worker printed too much of; it goes on behind what is left."""
        if self._log_bytes() > LOG_BYTES:
            os.truncate(self.log, LOG_BYTES // 2)

    def _log_bytes(self) -> int:
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended; it stays to be waited for, so that its number is given to no other process."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _stored(reply: R | protocol.Refused) -> R | protocol.Refused:
    """The reply, or StorageError where the disk kept the worker from its work."""
    if isinstance(reply, protocol.Refused) and reply.status == "storage":
        raise StorageError(reply.reason.removeprefix("StorageError: "))
    return reply


def _granted(reply: R | protocol.Refused) -> R:
    if isinstance(reply, protocol.Refused):
        raise WorkerLost(reply.status, reply.reason)
    return reply


class Pool:
    """The workers of a run, by back end and interpreter. Use as a context manager: leaving it ends them all.

    On the CPU they all compute with `threads` threads (by default one for each core), on cores of their own, or on those of the
    pool `beside` which they work in turns. On a GPU, where cells are going to be `timed`, a worker has started the profiler when it
    is ready.
    """

    def __init__(
        self, device: str, roots: Sequence[Path], log_folder: Path, threads: int | None = None, beside: Pool | None = None,
        timed: bool = False,
    ):  # fmt: skip
        self.device, self.roots, self.log_folder = device, [str(r) for r in roots], log_folder
        self.cores: Cores = beside.cores if beside else Cores(threads or len(os.sched_getaffinity(0)))
        self.owns_cores, self.timed = beside is None, timed
        self.workers: dict[tuple[str, str], Worker] = {}
        self.most_held = max(HELD_BYTES, HELD_SHARE * gpu_bytes()) if device == "cuda" else HELD_BYTES
        self.rates: dict[str, Rate | Missing] = {}  # yardsticks by name
        self.logs: dict[str, list[str]] = {}  # of each back end, the interpreters in the order of their logs
        self.started: set[tuple[str, str]] = set()  # workers that once answered
        self.refused: dict[tuple[str, str], WorkerLost] = {}  # those that did not start are not tried for every cell

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for worker in self.workers.values():
            worker.kill()
        if self.owns_cores:
            self.cores.release()

    def stop(self) -> None:
        """Has all workers end, without waiting for it."""
        for worker in list(self.workers.values()):  # another thread may start some
            worker.stop()

    def start(self, backend: str, python: str) -> None:
        """Starts the worker without waiting for it, so that several can import their frameworks side by side.

        Raises WorkerLost if its interpreter cannot be run.
        """
        if (backend, python) in self.workers:
            return
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PART_S, 0))
        log = self._log(backend, python)
        more = {PROFILES: "1"} if self.timed else {}
        if (
            backend == "reference"
        ):  # its chunks have sizes of their own: a heap of blocks that fit no other would fill the device
            more = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        command = [python, "-Pm", "fusebench.workers.worker", backend, self.device, str(theirs.fileno()), *self.roots]
        try:
            output = log.open("ab")
        except OSError as error:
            raise StorageError(str(error)) from error
        with output, theirs:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[theirs.fileno()],
                    start_new_session=True, env=environment(self.device, python, self.cores.numbers) | more,
                )  # fmt: skip
            except OSError as error:
                ours.close()
                raise WorkerLost("failed", f"the {backend} worker does not start: {error}") from error
        self.workers[backend, python] = Worker(process, Connection(ours.detach()), log)

    def _log(self, backend: str, python: str) -> Path:
        """The log of a worker: those of two interpreters of one back end have files of their own."""
        pythons = self.logs.setdefault(backend, [])
        if python not in pythons:
            pythons.append(python)
        number = pythons.index(python)
        return self.log_folder / f"worker-{backend}{f'-{number + 1}' if number else ''}.log"

    def get(self, backend: str, python: str, beside: bool = False) -> Worker:
        """The worker, started if need be and ready. Others give their device memory back, unless it is to work `beside` them.

        Raises WorkerLost if it cannot start.
        """
        for key, other in list(self.workers.items()):
            if not beside and key != (backend, python) and other.held_bytes > self.most_held:
                self.drop(*key)
        if lost := self.refused.get((backend, python)):
            raise lost
        if (backend, python) not in self.workers:
            self.start(backend, python)
        worker = self.workers[backend, python]
        if worker.info is None:
            try:
                info = worker.receive(protocol.WorkerInfo, START_S)
                if isinstance(info, protocol.Refused):
                    raise WorkerLost("failed", f"the {backend} worker does not start: {info.reason}")
            except WorkerLost as lost:
                if (backend, python) in self.started and self.device == "cuda":
                    lost = WorkerLost(
                        lost.status, f"{lost.reason} (it did before: does nvidia-smi still show the GPU?)"
                    )
                self.drop(backend, python)
                self.refused[backend, python] = lost
                raise lost from None
            self.started.add((backend, python))
            worker.info = info
        return worker

    def drop(self, backend: str, python: str) -> None:
        """Ends that worker, if it runs; the next `get` starts a fresh one."""
        if worker := self.workers.pop((backend, python), None):
            worker.kill()


class InlineWorker:
    """The same conversation within this process, for a debugger, ncu or compute-sanitizer: no isolation, no time-out."""

    held_bytes = 0
    used = False  # there is no other process that could take its place

    def __init__(self, backend: str, device: str):
        self.bench = Bench(backend, device)
        self.info = self.bench.info()

    def ask(self, request: protocol.Request, expected: type[R], timeout_s: float) -> R | protocol.Refused:
        return _stored(answer(self.bench, request))  # type: ignore[arg-type]

    def get(self, request: protocol.Request, expected: type[R], timeout_s: float) -> R:
        return _granted(self.ask(request, expected, timeout_s))


class InlinePool:
    """`Pool`'s stand-in for `worker=inline`."""

    def __init__(self, device: str, roots: Sequence[Path], threads: int | None = None):
        self.device = device
        discovery.use_roots(roots)
        self.workers: dict[str, InlineWorker] = {}
        self.rates: dict[str, Rate | Missing] = {}
        cores = sorted(os.sched_getaffinity(0))
        os.environ.update(environment(device, sys.executable, cores[:threads]))

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def start(self, backend: str, python: str) -> None:
        """Frameworks load at the first `get`."""

    def get(self, backend: str, python: str, beside: bool = False) -> InlineWorker:
        """The back end in this process. Raises WorkerLost if it cannot start, or is the reference, which has its own."""
        if backend == "reference":
            raise WorkerLost(
                "skipped", "the reference on the device has a process of its own, which worker=inline does not start"
            )
        if backend not in self.workers:
            try:
                self.workers[backend] = InlineWorker(backend, self.device)
            except (ImportError, RuntimeError) as error:
                raise WorkerLost("failed", f"the {backend} back end does not start: {error}") from error
        return self.workers[backend]

    def drop(self, backend: str, python: str) -> None:
        """An inline worker cannot be lost."""


def environment(device: str, python: str, cores: Sequence[int]) -> dict[str, str]:
    """A worker's environment: the harness on its path, and what has to be set before a framework is imported.

    On the CPU all frameworks and BLAS libraries get a thread for each of the `cores`, to which the worker confines itself: by
    their number XLA goes.
    """
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(harness_for(python)), *filter(None, [env.get("PYTHONPATH")])])
    env["PYTHONUNBUFFERED"] = "1"
    env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # both frameworks share the card
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA counts devices as NVML does
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compile processes that could outlive a killed worker
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    env.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.10 flips the default: figures would not compare
    env.pop("TRITON_INTERPRET", None)
    if device == "cpu":
        env.update(TRITON_INTERPRET="1", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
        count = str(len(cores))
        env.update(OMP_NUM_THREADS=count, OPENBLAS_NUM_THREADS=count, MKL_NUM_THREADS=count)
        env["FUSEBENCH_CORES"] = ",".join(map(str, cores))
    return env


@cache
def harness_for(python: str) -> Path:
    """The folder by which that interpreter finds the harness: where it lies, or for another interpreter than ours a folder with
    nothing else, because beside an installed harness lie the packages of this interpreter."""
    if python == sys.executable:
        return HARNESS
    folder = tempfile.TemporaryDirectory(prefix="fusebench-harness-")
    atexit.register(folder.cleanup)
    for package in ("fusebench", "implementations"):
        if (HARNESS / package).is_dir():
            Path(folder.name, package).symlink_to(HARNESS / package)
    return Path(folder.name)


def interpreter(pythons: Mapping[str, str | None], implementation: str, backend: str) -> str:
    """Which Python runs it: `worker.python.<implementation>`, else `worker.python.<back end>`, else this one."""
    return pythons.get(implementation) or pythons.get(backend) or sys.executable
