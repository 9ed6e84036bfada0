"""Configs compiled before any is tried, in processes side by side: what hangs or crashes a compiler costs that config alone.

What is compiled lands in the caches on disk from which workers load. Nothing is timed meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusebench.backends.cuda import architecture
from fusebench.cell import Trial
from fusebench.contract import Cell, Device
from fusebench.discovery import Implementation
from fusebench.errors import StorageError
from fusebench.folder import temporary
from fusebench.inspection.targets import Target
from fusebench.settings import Run
from fusebench.workers import protocol
from fusebench.workers.pool import START_S, Pool, Worker, WorkerLost

COMPILER = "compiler"  # the name of its worker


@dataclass(frozen=True)
class Compilation:
    """What became of a config's cell: "ok" and the seconds that it took, or a status of a cell with the reason."""

    cell: Cell
    status: str
    reason: str = ""
    traceback: str = ""
    seconds: float = 0.0


def possible(implementation: Implementation, fits: protocol.Fits) -> bool:
    """Whether its configs can be compiled ahead: Torch's Triton and CUDA implementations that name their launches. JAX compiles what it
    launches itself, and keeps it nowhere that a later process looks."""
    on_gpu = fits.device.type == "cuda"
    return on_gpu and fits.launches and implementation.backend == "torch"


def compile_all(this: Run, pool: Pool, cells: Sequence[Cell], target: Target, jobs: int) -> Iterator[Compilation]:
    """Compiles cells, each with a config, for a target, `jobs` at a time, and yields what became of each as it ends.

    A compiler that does not start yields nothing: its configs are compiled by those who run them. Raises StorageError.
    """
    left: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in cells:
        left.put(cell)
    ended: queue.SimpleQueue[Compilation | StorageError | None] = queue.SimpleQueue()
    with temporary(this.folder, ".inputs-compilers-") as logs:
        crew = [
            _Process(this, pool, target, logs / str(number), left, ended) for number in range(min(jobs, len(cells)))
        ]
        try:
            with this.clock.during("compile"):
                for process in crew:
                    process.start()
                working = len(crew)
                while working:
                    outcome = ended.get()
                    if isinstance(outcome, StorageError):
                        raise outcome
                    if outcome is None:
                        working -= 1
                    else:
                        yield outcome
        finally:
            for process in crew:
                process.end()
            for process in crew:
                process.join()


class _Process(threading.Thread):
    """One compiler, and the thread that hands it a cell at a time."""

    def __init__(self, this: Run, pool: Pool, target: Target, logs: Path, left: queue.SimpleQueue[Cell], ended: queue.SimpleQueue[Compilation | StorageError | None]):  # fmt: skip
        super().__init__(daemon=True)
        self.this, self.target, self.left, self.ended = this, target, left, ended
        logs.mkdir()
        self.pool = Pool("cuda", this.roots, logs, beside=pool)  # so that nothing is interpreted
        self.over = False
        self.worker: Worker | None = None
        self.loaded: set[tuple[str, str]] = set()  # what that worker has imported

    def run(self) -> None:
        try:
            while not self.over:
                config = self.left.get_nowait()
                if (outcome := self._compile(config)) and not self.over:
                    self.ended.put(outcome)
        except (queue.Empty, WorkerLost):  # all done, or it does not start
            pass
        except StorageError as error:
            self.ended.put(error)
        finally:
            self.pool.__exit__()
            self.ended.put(None)

    def _compile(self, cell: Cell) -> Compilation | None:
        """Raises WorkerLost where the compiler does not start."""
        key, target = (COMPILER, Trial(self.this, cell).worker_key[1]), self.target
        asked = protocol.CompileAhead(cell.case, cell.implementation, cell.variant, cell.config, target.device, target.arch)  # fmt: skip
        worker = self._ready(key, cell)
        if self.over:
            return None
        try:
            answer = worker.ask(asked, protocol.CompiledAhead, self.this.settings.limit_s("compile"))
        except WorkerLost as lost:
            self.pool.drop(*key)
            reason = lost.reason.replace("(timeout_s", "(compile_timeout_s").replace("the worker", "the compiler")
            return Compilation(cell, lost.status, f"compiling ahead: {reason}")
        if isinstance(answer, protocol.Refused):
            return Compilation(cell, answer.status, answer.reason, answer.traceback)
        return Compilation(cell, "ok", seconds=answer.seconds)

    def _ready(self, key: tuple[str, str], cell: Cell) -> Worker:
        """The compiler, with the implementation imported. Raises WorkerLost where either fails."""
        worker, asked = self.pool.get(*key), protocol.Load(cell.case.kernel, cell.implementation)
        if worker is not self.worker:
            self.worker, self.loaded = worker, set()
        if (asked.kernel, asked.implementation) not in self.loaded:
            try:
                worker.get(asked, protocol.Loaded, START_S)
            except WorkerLost:
                self.pool.drop(*key)
                raise
            self.loaded.add((asked.kernel, asked.implementation))
        return worker

    def end(self) -> None:
        """Has it stop, in the middle of a config if need be."""
        self.over = True
        self.pool.stop()


def target_of(device: Device) -> Target:
    """What is compiled for a device that is here."""
    return Target(architecture(device.capability), device)
