"""The one path of a cell: inputs → build → first output → parity → timing → a timed output checked again → record.

`bench`, `parity`, asv, the tests and the library are thin callers of `run`; there is no second path.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fusebench import discovery, hard, records
from fusebench.cases import command
from fusebench.contract import Case, Cell
from fusebench.discovery import Kernel
from fusebench.errors import Unstored
from fusebench.folder import scratch, temporary
from fusebench.parity.case_data import SETS, CaseData
from fusebench.parity.rounding import FLUSHED
from fusebench.settings import Clock, Settings
from fusebench.timing import yardstick, yardstick_cache
from fusebench.workers.pool import InlinePool, Pool, WorkerLost, interpreter
from fusebench.workers.worker import describe

INTERPRETER_FLOPS = 2.5e8  # Triton's interpreter takes 2 to 4 ms a tile: beyond this a cell takes minutes


@dataclass
class Run:
    """A run in hand: its settings, the folders it searches, where its records go and its clock."""

    kernels: Mapping[str, Kernel]
    roots: Sequence[Path]
    folder: Path
    settings: Settings
    clock: Clock = field(default_factory=Clock)
    on_phase: Callable[[Cell, str], None] = lambda cell, phase: None


def run(this: Run, cells: Sequence[Cell], pool: Pool | InlinePool | None = None) -> Iterator[dict[str, Any]]:
    """Runs the cells in order and yields each one's record once it is on disk.

    Cells of one case stand together. Whatever one cell does, the others get their records. A `pool` that is handed in stays
    open for the next run; without one, the workers end with this run. Raises Unstored where the disk takes no more.
    """
    with scratch(this.folder) as files, contextlib.nullcontext(pool) if pool else _pool(this) as workers:
        start_workers(this.clock, [(workers, home) for home in sorted(_wanted(this, cells))])
        for _, group in itertools.groupby(cells, key=lambda c: (c.case, c.seed, c.inputs)):
            yield from _run_case(this, workers, list(group), files)


def _pool(this: Run) -> Pool | InlinePool:
    if this.settings.inline:
        return InlinePool(this.settings.device, this.roots, this.settings.threads)
    return Pool(this.settings.device, this.roots, this.folder, this.settings.threads)


def _wanted(this: Run, cells: Sequence[Cell]) -> set[tuple[str, str]]:
    """The workers of the cells, and the one for the yardsticks."""
    wanted = homes(this, cells)
    if wanted and this.settings.plan.time_s:
        wanted.add(("torch", interpreter(this.settings.pythons, "torch", "torch")))
    return wanted


def homes(this: Run, cells: Sequence[Cell]) -> set[tuple[str, str]]:
    """The workers of the cells that can run."""
    return {home_of(this, cell) for cell in cells if _needs_worker(this, cell)}


def _needs_worker(this: Run, cell: Cell) -> bool:
    try:
        return not _cannot(this, cell)
    except Exception:  # a kernel.py that raises: its cells will say so, one by one
        return False


def start_workers(clock: Clock, wanted: Sequence[tuple[Any, tuple[str, str]]]) -> None:
    """Each in its pool; all at once, because importing a framework takes seconds, and all ready before anything is timed."""
    for take in ("start", "get"):
        for pool, home in wanted:
            with clock.during("start_up"), contextlib.suppress(WorkerLost):  # its cells will say so, one by one
                getattr(pool, take)(*home)


def _run_case(this: Run, pool: Any, cells: Sequence[Cell], files: Path) -> Iterator[dict[str, Any]]:
    """The cells of one case on the same inputs."""
    case = cells[0].case
    module = this.kernels[case.kernel].module
    with temporary(files) as folder:
        shared = CaseData(module, cells[0], folder, this.settings, this.clock)
        for cell in cells:
            record = new_record(this, cell)
            with at_its_own_cost(this, pool, cell, record):
                if possible(this, cell, record):
                    rates = _rates(this, pool, case, record["flops"])
                    with this.clock.during("start_up"):
                        worker = pool.get(*home_of(this, cell))
                    _run_cell(Trial(this, pool, worker, cell, record, shared), rates)
                    release(pool, home_of(this, cell), worker, this.settings.timeout_s)
            records.append(this.folder, record)
            yield records.plain(record)


def new_record(this: Run, cell: Cell) -> dict[str, Any]:
    """The record of a cell before anything happened to it."""
    implementation = _implementation(this, cell)
    record = records.new(cell, this.settings.device, implementation.file)
    return record | {
        "computes": implementation.computes, "time_s": this.settings.plan.time_s, "timeout_s": this.settings.timeout_s
    }  # fmt: skip


def possible(this: Run, cell: Cell, record: dict[str, Any]) -> bool:
    """Whether the cell can run here, as far as can be told without a worker; if not, the record says why."""
    module = this.kernels[cell.case.kernel].module
    record |= {"flops": int(module.flops(cell.case)), "moved_bytes": int(module.moved_bytes(cell.case))}
    if broken := _implementation(this, cell).broken:
        record |= {"status": "failed", "reason": broken}
    elif reason := _cannot(this, cell):
        record |= {"status": "skipped", "reason": reason}
    return record["status"] == "ok"


@contextlib.contextmanager
def at_its_own_cost(this: Run, pool: Any, cell: Cell, record: dict[str, Any]) -> Iterator[None]:
    """Whatever goes wrong inside ends in this cell's record and costs no other one.

    Raises Unstored: no cell is at fault there, and a run that goes on later has this one before it.
    """
    try:
        yield
    except WorkerLost as lost:
        record |= {"status": lost.status, "reason": lost.reason}
        pool.drop(*home_of(this, cell))
    except Unstored as error:
        raise Unstored(f"{cell.id}: {error}") from error
    except Exception as error:  # a kernel.py that raises, or inputs that do not fit in memory, cost their cells
        record |= describe(error)
    if record["status"] == "wrong":
        kernel = this.kernels[cell.case.kernel]
        # parity makes too few calls to see what only a timed one does
        timed = _timing_keys(this) if str(record["reason"]).startswith("a timed call") else ()
        record["reproduce"] = command(kernel, cell, this.settings.device, this.roots[1:], timed)
    record["ended"] = datetime.now(UTC).isoformat()


def _timing_keys(this: Run) -> list[str]:
    """The keys of `bench` that time a cell as this run does."""
    keys = [f"{key}={getattr(this.settings.plan, key)}" for key in ("time_s", "target", "regime", "cache")]
    return keys + [f"threads={n}" for n in (this.settings.threads,) if n]


def release(pool: Any, home: tuple[str, str], worker: Any, timeout_s: float) -> None:
    """Makes a worker let go of its cell. If that fails the worker is lost, but not what the cell left on record."""
    try:
        worker.held_bytes = worker.ask({"do": "release"}, timeout_s).get("held_bytes", 0)
    except WorkerLost:
        pool.drop(*home)


@dataclass
class Trial:
    """A cell in the hands of its worker. Each step asks the worker, has the outputs judged and says whether all is right;
    if not, the record has the status and the reason. Raises WorkerLost if the worker dies of it."""

    this: Run
    pool: Any  # where the reference on the device is
    worker: Any
    cell: Cell
    record: dict[str, Any]
    shared: CaseData
    built: dict[str, Any] = field(default_factory=dict)

    def build(self) -> bool:
        """Compiles the cell; its first output is judged."""
        hello, cell = self.worker.hello, self.cell
        self.record |= {"device": hello["device"], "packages": hello["packages"], "python": hello["python"]}
        self.built = self._ask(
            "compile", do="build", case=cell.case.as_dict(), implementation=cell.implementation, variant=cell.variant,
            names=self.shared.names, sets=self.shared.files,
        )  # fmt: skip
        return self._right("parity", "", self.built, 0)

    def again(self) -> bool:
        """Judges a later call."""
        answer = self._ask("parity", do="again")
        return self._right("parity_again", "a later call, on other inputs in the same memory: ", answer, SETS - 1)

    def time(self, judged: bool = True) -> bool:
        """Times the cell, and judges the last timed output unless it is not to be `judged`."""
        plan = asdict(self.this.settings.plan)
        # without a folder the worker leaves the output on the device
        answer = self._ask("timing", do="time", plan=plan, **({} if judged else {"folder": ""}))
        right = self._right("parity_timed", "a timed call: ", answer, SETS - 1 if judged else None)
        if not right:
            self.record.pop("timing", None)
        return right

    def _ask(self, phase: str, **message: Any) -> dict[str, Any]:
        self.this.on_phase(self.cell, phase)
        with self.this.clock.during(phase):
            return self.worker.ask({"folder": str(self.shared.folder)} | message, self.this.settings.timeout_s)

    def _right(self, key: str, which: str, answer: dict[str, Any], set_: int | None) -> bool:
        """Whether the answer is ok, and its outputs, if they are of an input set, right for that."""
        self.record.update({k: v for k, v in answer.items() if k not in ("outputs", "points", "fatal")})
        if answer["status"] != "ok" or set_ is None:
            return bool(answer["status"] == "ok")
        self.this.on_phase(self.cell, "parity")
        flushed = (FLUSHED,) if self.worker.hello["flushes_subnormals"] else ()
        points, part = (*self.built["points"], *flushed), _implementation(self.this, self.cell).computes
        verdict = self.shared.judge(answer["outputs"], points, part, set_, self.pool)
        self.record[key] = asdict(verdict)
        if not verdict.ok:
            self.record.update(status="wrong", reason=which + verdict.reason())
        return verdict.ok


def _run_cell(trial: Trial, rates: dict[str, Any]) -> None:
    """Fills the record of a cell that can run."""
    time_s, record = trial.this.settings.plan.time_s, trial.record
    if not trial.build():
        return
    if interpreted(trial.this, trial.cell):  # the interpreter takes seconds a call, and has no state from call to call
        if time_s:
            record |= {"status": "skipped", "reason": "interpreted on the CPU: right, but never timed"}
        return
    if trial.again() and time_s and trial.time():
        record["compile_s"] = max(0.0, trial.built["compile_s"] - record["timing"]["median"])
        add_rates(record, rates)


def add_rates(record: dict[str, Any], rates: dict[str, Any]) -> None:
    """Adds the rates of a measured cell and the best time by the yardsticks `rates` (yardstick.as_rates; {} for none), and
    turns a time that no device of its kind can reach into `implausible`."""
    seconds, case = record["timing"]["median"], record["case"]
    work = record["flops"], record["moved_bytes"]
    record["tflops"] = record["flops"] / seconds / 1e12
    record["gbps"] = record["moved_bytes"] / seconds / 1e9
    record["yardstick"] = rates or None
    record["best_s"] = yardstick.best(*work, record["written_bytes"], rates)
    record["yardstick_share"] = record["best_s"] and record["best_s"] / seconds
    record["bound_s"] = yardstick.bound(*work, case["dtype"], case["precision"], record["device"])
    clocks = record["timing"]["clocks"]
    if clocks and clocks["says"] == "contradicts":
        record |= {"status": "implausible", "reason": clocks["reason"]}
    if record["bound_s"] is not None and seconds < record["bound_s"]:
        record |= {
            "status": "implausible",
            "reason": f"{seconds * 1e6:.2f} µs is below {record['bound_s'] * 1e6:.2f} µs, which no such card can beat",
        }


def _cannot(this: Run, cell: Cell) -> str | None:
    """Why the cell cannot run here, as far as can be told without loading a framework."""
    implementation = _implementation(this, cell)
    if cell.inputs not in hard.kinds(this.kernels[cell.case.kernel].module, cell.case):
        return f"the formula of {cell.case.kernel} leaves open what {cell.inputs} inputs give in {cell.case.dtype}"
    if this.settings.device == "cpu":
        if implementation.without_gpu == "unavailable":
            return "needs an NVIDIA GPU"
        if cell.case.precision == "tf32":
            return "tf32 is a precision of tensor cores: the CPU has none"
        if implementation.without_gpu == "interpreted" and cell.case.dtype == "bfloat16":
            return "interpreted on the CPU, where Triton computes bfloat16 wrongly"
        module = this.kernels[cell.case.kernel].module
        flops = max(module.flops(cell.case), module.moved_bytes(cell.case))
        if implementation.without_gpu == "interpreted" and flops > INTERPRETER_FLOPS:
            return f"interpreted on the CPU, where {flops:.1e} FLOPs take minutes (at most {INTERPRETER_FLOPS:.1e}): try case=odd"
    return None


def interpreted(this: Run, cell: Cell) -> bool:
    """Whether it runs in Triton's interpreter, which is never timed."""
    return this.settings.device == "cpu" and _implementation(this, cell).without_gpu == "interpreted"


def _implementation(this: Run, cell: Cell) -> discovery.Implementation:
    return this.kernels[cell.case.kernel].implementations[cell.implementation]


def home_of(this: Run, cell: Cell) -> tuple[str, str]:
    """The back end and interpreter of its worker."""
    backend = _implementation(this, cell).backend
    return backend, interpreter(this.settings.pythons, cell.implementation, backend)


def _rates(this: Run, pool: Any, case: Case, flops: int) -> dict[str, Any]:
    """The yardsticks that the case needs, those that no earlier run left measured now; {} for parity alone, without Torch, or
    where one of them cannot be measured."""
    if not this.settings.plan.time_s:
        return {}
    names = yardstick.needed(case.dtype, case.precision, flops)
    if missing := [name for name in names if name not in pool.rates]:
        home = ("torch", interpreter(this.settings.pythons, "torch", "torch"))
        pool.rates |= {name: {"reason": "the worker was lost"} for name in missing}  # not tried again for every case
        with this.clock.during("timing"):
            try:
                pool.rates |= yardstick_cache.find(pool.get(*home), missing, this.settings.timeout_s)[1]
            except WorkerLost:
                pool.drop(*home)
    return yardstick.as_rates(pool.rates, names)
