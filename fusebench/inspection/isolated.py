"""Cells compiled in a process of their own: what crashes a compiler, or has it hang, costs that cell alone."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fusebench.workers import protocol
from fusebench.workers.pool import START_S, Pool, Worker, WorkerLost

KEY = ("compiler", sys.executable)


class Compiler:
    """One process for all cells, started anew after one that ended it, or that took more than `limit_s` seconds. Use as a context
    manager; `ask` is that of compiled.compile_cell."""

    def __init__(self, roots: Sequence[Path], limit_s: float):
        self.roots, self.limit_s = roots, limit_s
        self.loaded: set[tuple[str, str]] = set()  # what the process has imported

    def __enter__(self) -> Compiler:
        self.folder = tempfile.TemporaryDirectory(prefix="fusebench-")
        self.pool = Pool("cuda", self.roots, Path(self.folder.name))  # not "cpu", where Triton is interpreted
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.__exit__()
        self.folder.cleanup()

    def ask(self, asked: protocol.CompileStages) -> protocol.CompiledStages:
        """What became of the cell. Raises StorageError."""
        try:
            worker = self.pool.get(*KEY)
            reply = self._load(worker, asked) or worker.ask(asked, protocol.CompiledStages, self.limit_s)
        except WorkerLost as lost:
            self.pool.drop(*KEY)
            self.loaded.clear()
            return protocol.CompiledStages(reason=lost.reason.replace("the worker", "the compiler"), failed=True)
        if isinstance(reply, protocol.Refused):
            return protocol.CompiledStages(reason=reply.reason, failed=True)
        return reply

    def _load(self, worker: Worker, asked: protocol.CompileStages) -> protocol.Refused | None:
        """Has it import the implementation, so that the limit has no start of a framework in it; the refusal of one that does not."""
        key = asked.case.kernel, asked.implementation
        if key in self.loaded:
            return None
        reply = worker.ask(protocol.Load(*key), protocol.Loaded, max(START_S, self.limit_s))
        if isinstance(reply, protocol.Refused):
            return protocol.Refused(reply.status, f"does not import: {reply.reason}")
        self.loaded.add(key)
        return None
