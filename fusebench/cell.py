"""The life of a cell: possible? → worker → inputs → build → first output → parity → timing → a timed output judged → record.

`run`, `compare` and asv take their cells through these steps, and nothing else makes a record of a cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from fusebench import discovery, hard, machine, modes, provenance
from fusebench.case_data import SETS, UNSEEN, CaseData
from fusebench.cases import command
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.errors import StorageError
from fusebench.inputs import Stored
from fusebench.parity.rounding import FLUSHED
from fusebench.parity.verdict import Verdict
from fusebench.records.record import Rates, Record, Spread, Work
from fusebench.settings import Run
from fusebench.terminal import counted
from fusebench.timing import yardstick
from fusebench.timing.summary import Timing
from fusebench.workers import protocol, second_clock, state
from fusebench.workers.answers import describe
from fusebench.workers.pool import Unasked, WorkerLost, interpreter

INTERPRETER_FLOPS = 2.5e8  # Triton's interpreter takes 2 to 4 ms a tile: beyond this a cell takes minutes
# Of a gradient that sums over rows: NumPy takes some twenty times as many in float64, a minute or two.
REFERENCE_FLOPS = 5e10

R = TypeVar("R", bound=protocol.Message)


@dataclass
class Trial:
    """A cell of a run, and its record so far. Each step adds to the record and says whether all is right; if not, the record
    has the status and the reason."""

    run: Run
    cell: Cell
    commit: str | None = None  # that the implementation is of, where its file is a copy from there
    record: Record = field(init=False)
    worker: Any = None
    judges: Any = None  # the pool that has the reference on the device
    shared: CaseData | None = None
    points: tuple[str, ...] = ()
    again: bool = False  # whether a fresh worker may succeed: the profiler lost records

    def __post_init__(self) -> None:
        self.record = replace(
            provenance.new_record(self.cell, self.run.settings.device),
            computes=self.implementation.computes, published=provenance.published(self.kernel, self.cell),
            time_s=self.run.settings.plan.time_s, timeout_s=self.run.settings.timeout_s,
        )  # fmt: skip

    @property
    def kernel(self) -> Kernel:
        return self.run.kernels[self.cell.case.kernel]

    @property
    def implementation(self) -> discovery.Implementation:
        return self.kernel.implementations[self.cell.implementation]

    @property
    def worker_key(self) -> tuple[str, str]:
        """The back end and interpreter of the cell's worker."""
        backend = self.implementation.backend
        return backend, interpreter(self.run.settings.pythons, self.cell.implementation, backend)

    @property
    def ok(self) -> bool:
        return self.record.status == "ok"

    def end(self, status: str, reason: str, traceback: str = "") -> None:
        """Ends the cell with a status that is not ok: it has no time."""
        self.record = replace(self.record, status=status, reason=reason, traceback=traceback, timing=None, rates=None)

    def name_source(self) -> None:
        """Notes which code is about to be measured."""
        source = provenance.source_of(self.implementation.file, self.kernel.sources)
        if source and self.commit:
            source = replace(source, git_commit=self.commit)
        self.record = replace(self.record, source=source)

    def can_run(self) -> bool:
        """Whether the cell can run here, as far as can be told without a worker; if not, the record says why."""
        if self.record.source is None:  # a pair has named it already
            self.name_source()
        self.record = replace(self.record, work=Work(*self.kernel.mathematics.work(self.cell.case)))
        if broken := self.implementation.broken:
            self.end("failed", broken)
        elif reason := self.skip_reason():
            self.end("skipped", reason)
        return self.ok

    def skip_reason_anywhere(self) -> str | None:
        """Why the cell can run on no device, as far as can be told without loading a framework."""
        case, mathematics = self.cell.case, self.kernel.mathematics
        if reason := modes.reason(case.kernel, mathematics, self.implementation.backward, case, self.cell.variant):
            return reason
        if self.cell.inputs not in hard.kinds(mathematics, case):
            if self.cell.inputs == hard.UPSTREAM:
                return "upstream inputs are for the backward modes: forward has no upstream gradients"
            what = "formula" if case.mode == "forward" else "gradient"
            return f"the {what} of {case.kernel} leaves open what {self.cell.inputs} inputs give in {case.dtype}"
        return None

    def skip_reason(self) -> str | None:
        """Why the cell cannot run here, as far as can be told without loading a framework."""
        case, mathematics, without_gpu = self.cell.case, self.kernel.mathematics, self.implementation.without_gpu
        if reason := self.skip_reason_anywhere():
            return reason
        if self.run.settings.device == "cpu":
            if without_gpu == "unavailable":
                return "needs an NVIDIA GPU"
            if case.precision == "tf32" and without_gpu != "emulated":
                return "tf32 is a precision of tensor cores: the CPU has none"
            if without_gpu == "interpreted" and case.dtype == "bfloat16" and "triton" in self.implementation.requires:
                return "interpreted on the CPU, where Triton computes bfloat16 wrongly"
            flops = max(mathematics.flops(case), mathematics.moved_bytes(case))
            if modes.sums_rows(mathematics, case.mode) and flops > REFERENCE_FLOPS:
                return f"on a CPU the reference of gradients that sum over all rows takes {flops:.1e} FLOPs many times (at most {REFERENCE_FLOPS:.1e}): try case=odd"
            if self.interpreted and flops > INTERPRETER_FLOPS:
                return f"{without_gpu} on the CPU, where {flops:.1e} FLOPs take minutes (at most {INTERPRETER_FLOPS:.1e}): try case=odd"
        return None

    @property
    def interpreted(self) -> bool:
        """Whether it runs in Triton's interpreter or in the emulator, which are never timed."""
        return bool(self.implementation.untimed(self.run.settings.device))

    @contextlib.contextmanager
    def recording_failures(self, pool: Any) -> Iterator[None]:
        """Whatever goes wrong inside ends in this cell's record and costs no other one.

        Raises StorageError: no cell is at fault there, and a run that goes on later has this one before it.
        """
        try:
            yield
        except WorkerLost as lost:
            self.end(lost.status, lost.reason)
            pool.drop(*self.worker_key)
        except StorageError as error:
            raise StorageError(f"{self.cell.id}: {error}") from error
        except Exception as error:  # a kernel.py that raises, or inputs that do not fit in memory, cost their cells
            failed = describe(error)
            self.end(failed.status, failed.reason, failed.traceback)
        if self.record.status == "wrong" and not self.record.reproduce:
            # parity makes too few calls to see what only a timed one does
            timed = self._timing_keys() if str(self.record.reason).startswith("a timed call") else ()
            self._show_again(self.cell, timed)
        self.record = replace(self.record, ended=datetime.now(UTC).isoformat())

    def _show_again(self, cell: Cell, timed: Sequence[str] = ()) -> None:
        settings, seed = self.run.settings, self.record.parity.rows_seed
        shown = command(self.kernel, cell, settings.device, self.run.roots[1:], timed, seed, settings.fits)
        self.record = replace(self.record, reproduce=shown)

    def _timing_keys(self) -> list[str]:
        """The keys of `bench` that time a cell as this run does."""
        settings = self.run.settings
        keys = [f"{key}={getattr(settings.plan, key)}" for key in ("time_s", "target", "regime", "cache")]
        return keys + [f"threads={n}" for n in (settings.threads,) if n]

    def begin(self, worker: Any, judges: Any, shared: CaseData) -> None:
        """Gives the cell its worker, the pool of the reference on the device, and the data that it shares with others."""
        self.worker, self.judges, self.shared = worker, judges, shared
        info = worker.info
        environment = replace(self.record.environment, device=info.device, packages=info.packages, python=info.python)
        self.record = replace(self.record, environment=environment)

    def build(self, judged: bool = True) -> bool:
        """Compiles the cell; its first output is judged, unless it is not to be. Raises WorkerLost if the worker dies of it, as the next ones do."""
        assert self.shared
        request = protocol.BuildCell(
            self.cell.case, self.cell.implementation, self.cell.variant, tuple(self.shared.names),
            tuple(map(tuple, self.shared.files)), str(self.shared.folder), self.cell.config, self.run.settings.tuned,
            self.run.settings.fits,
        )  # fmt: skip
        built = self._ask("compile", request, protocol.Built)
        if built is None:
            return False
        self.points = built.build.points
        source = self.record.source and provenance.with_files(self.record.source, built.sources)
        self.record = replace(self.record, build=built.build, source=source)
        return not judged or self._judge("first", "", built.outputs, 0)

    def repeat(self) -> bool:
        """Judges a later call."""
        assert self.shared
        rows = self.shared.rows(self.implementation.computes)
        if rows is not None:
            self.record = replace(self.record, parity=replace(self.record.parity, rows_seed=rows.seed))
        later = self._ask("parity", protocol.RepeatCell(str(self.shared.folder), rows), protocol.Repeated)
        if later is None:
            return False
        prefix = "a later call, on other inputs in the same memory: "
        return self._judge("repeated", prefix, later.outputs, SETS - 1) and self._judge_differing(
            later.nondeterministic, later.differing
        )

    def on_hard(self, kind: str, shared: CaseData) -> bool:
        """Judges the cell in hand on hard inputs of that kind, of the same case."""
        prefix = f"{kind} inputs, case {self.cell.case.id}: "
        files = tuple(shared.files[0])
        try:
            tried = self._ask("parity", protocol.TryCell(files, str(shared.folder)), protocol.Tried)
        except WorkerLost as lost:
            raise WorkerLost(lost.status, prefix + lost.reason) from lost
        if tried is None:
            self.end(self.record.status, f"{prefix}{self.record.reason}", self.record.traceback)
            return False
        verdict = self._verdict(shared, tried.outputs, 0)
        if verdict.each_ok:
            parity = self.record.parity
            self.record = replace(self.record, parity=replace(parity, hard=(*parity.hard, kind)))
            return True
        self.end("wrong", prefix + verdict.reason())
        self._show_again(replace(self.cell, inputs=kind))
        return False

    def time(self, judged: bool = True) -> Timing | None:
        """Times the cell, and judges what timed calls and some after them gave unless they are not to be `judged`; None where that
        is not right."""
        assert self.shared
        folder = str(self.shared.folder) if judged else ""  # without one the worker leaves the outputs on the device
        timed = self._ask("timing", protocol.TimeCell(self.run.settings.plan, folder), protocol.Timed)
        if timed is None or (judged and not self._judge_differing(timed.nondeterministic, timed.differing, "timed")):
            return None
        if not judged or self.run.settings.device != "cpu" or not second_clock.reaches(self.worker):
            return timed.timing
        unseen, limit_s = self.shared.unseen_files, self.run.settings.timeout_s
        with self.run.clock.during("timing"):
            batch = second_clock.watch(self.worker, timed.timing, unseen, folder, limit_s)
        tried = self._ask("parity", protocol.FetchUnseen(folder), protocol.Tried)
        prefix = "a timed call, on inputs that none before had: "
        if tried is None or not self._judge("timed", prefix, tried.outputs, UNSEEN):
            return None
        return replace(timed.timing, batch=batch)

    def let_go(self, pool: Any) -> None:
        """Has the worker let go of the cell. What it changed in the process stands in the record; the functions that results and
        clocks depend on are not its to replace."""
        released = release(pool, self.worker_key, self.worker, self.run.settings.timeout_s)
        changed = (*released.changed, *(f"{name} replaced" for name in released.replaced))
        self.record = replace(self.record, changed=changed)
        if self.ok and released.replaced:
            self.end("failed", state.REPLACED.format(", ".join(released.replaced)))

    def _judge_differing(self, spread: Spread | None, differing: protocol.Differing, which: str = "repeated") -> bool:
        """Whether outputs are right that are not those of an earlier call on the same inputs. Where a call gave the same bits as
        one that was judged, so was it."""
        parity = replace(self.record.parity, nondeterministic=spread)
        if which == "timed":
            parity = replace(parity, timed=parity.repeated)
        self.record = replace(self.record, parity=parity)
        prefix = "a timed call, or one after it: " if which == "timed" else "another call on the same inputs: "
        return all(self._judge(which, prefix, outputs, set_) for set_, outputs in differing)

    def _ask(self, phase: str, request: protocol.Request, expected: type[R]) -> R | None:
        self.run.on_phase(self.cell, phase)
        with self.run.clock.during(phase):
            try:
                reply = self.worker.ask(request, expected, self.run.settings.limit_s(phase))
            except WorkerLost as lost:
                if phase == "compile" and self.run.settings.compile_timeout_s:
                    lost = WorkerLost(lost.status, lost.reason.replace("(timeout_s", "(compile_timeout_s"))
                raise lost from None
        if isinstance(reply, protocol.Refused):
            self.end(reply.status, reply.reason, reply.traceback)
            self.again = reply.again
            return None
        answer: R = reply
        return answer

    def _judge(self, which: str, prefix: str, outputs: Sequence[Stored], set_: int) -> bool:
        """Whether the outputs, which were computed from that input set, are right; `which` of the record's verdicts it is."""
        assert self.shared
        verdict = self._verdict(self.shared, outputs, set_)
        chosen = self.run.settings.rows_seed if verdict.some_rows else self.record.parity.rows_seed
        parity = replace(self.record.parity, rows_seed=chosen, **{which: verdict})  # type: ignore[arg-type]
        self.record = replace(self.record, parity=parity)
        if not verdict.ok:
            self.end("wrong", prefix + verdict.reason())
        return verdict.ok

    def _verdict(self, shared: CaseData, outputs: Sequence[Stored], set_: int) -> Verdict:
        self.run.on_phase(self.cell, "parity")
        flushed = (FLUSHED,) if self.cell.case.dtype in self.worker.info.flushes else ()
        return shared.judge(outputs, (*self.points, *flushed), self.implementation.computes, set_, self.judges)


def release(pool: Any, worker_key: tuple[str, str], worker: Any, timeout_s: float) -> protocol.Released:
    """Makes a worker let go of its cell, and returns what the cell changed in the process: then the next cell gets another worker.
    If that fails the worker is lost, but not what the cell left on record, unless it said what it was not asked: raises Unasked."""
    try:
        released: protocol.Released = worker.get(protocol.Release(), protocol.Released, timeout_s)
    except Unasked:
        raise
    except WorkerLost:
        pool.drop(*worker_key)
        return protocol.Released()
    worker.held_bytes = released.held_bytes
    if released.changed or released.replaced:
        pool.drop(*worker_key)
    return released


def run_cell(trial: Trial, rates: yardstick.Rates | None, built: Callable[[Trial], bool] = lambda _: True) -> None:
    """Fills the record of a cell that can run and has its worker; `built` says whether it goes on once it is built."""
    time_s = trial.run.settings.plan.time_s
    if not (trial.build() and built(trial)):
        return
    if trial.interpreted:  # the interpreter takes seconds a call, and has no state from call to call
        if time_s:
            trial.end("skipped", f"{trial.implementation.without_gpu} on the CPU: right, but never timed")
        return
    if trial.repeat() and time_s and (timing := trial.time()):
        trial.record = rated(with_timing(trial.record, timing), rates)
        trial.again = trial.record.status == "implausible" and doubted(timing)


def doubted(timing: Timing) -> bool:
    """Whether a second clock contradicts the worker's. A busy machine may be the reason: such a cell is tried again, once."""
    clocks, batch = timing.clocks, timing.batch
    return (clocks is not None and clocks.says == "contradicts") or (batch is not None and batch.contradicts)


def with_timing(record: Record, timing: Timing) -> Record:
    """The record with the times of its calls; the first call's seconds less the median are those of compilation."""
    build = record.build
    if build is not None:
        build = replace(build, compile_s=max(0.0, build.compile_s - timing.median))
    return replace(record, timing=timing, build=build)


def rated(record: Record, yardsticks: yardstick.Rates | None) -> Record:
    """The record of a timed cell with its rates and the best time by the yardsticks, where they are known. A time that no device
    of its kind can reach, or that the second clock contradicts, is `implausible`."""
    assert record.timing and record.work and record.build
    timing, case, work = record.timing, record.case, record.work
    seconds = timing.median
    flops, moved_bytes = work.flops or 0, work.moved_bytes or 0
    best = bound = None
    if work != Work(None, None):
        best = yardstick.best(flops, moved_bytes, record.build.written_bytes, yardsticks)
        bound = yardstick.bound(flops, moved_bytes, case.dtype, case.precision, record.device)
    tflops = None if work.flops is None else flops / seconds / 1e12
    gbps = None if work.moved_bytes is None else moved_bytes / seconds / 1e9
    rates = Rates(tflops, gbps, yardsticks, best, best and best / seconds, bound)
    record = replace(record, rates=rates)
    if bound is not None and seconds < bound:
        reason = f"{seconds * 1e6:.2f} µs is below {bound * 1e6:.2f} µs, which no such card can beat"
        return replace(record, status="implausible", reason=reason)
    if timing.clocks and timing.clocks.says == "contradicts":
        others = machine.others_on_gpu() if record.device.type == "cuda" else 0
        beside = f", beside {counted(others, 'other program')} on this GPU" if others else ""
        return replace(record, status="implausible", reason=f"{timing.clocks.reason}{beside}")
    if timing.batch and timing.batch.contradicts:
        calls, took = timing.batch.calls, timing.batch.seconds
        reason = f"{calls} calls on fresh inputs took {took * 1e3:.3g} ms by the parent's clock; by the median they take {calls * seconds * 1e3:.3g}"
        return replace(record, status="implausible", reason=reason)
    return record
