"""The one path of a cell: inputs → build → first output → parity → timing → a timed output checked again → record.

`bench`, `parity`, asv, the tests and the library are thin callers of `run`; there is no second path.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fusebench import discovery, hard, records, yardstick, yardstick_cache
from fusebench.case_data import SETS, CaseData
from fusebench.cases import command
from fusebench.contract import Case, Cell
from fusebench.discovery import Kernel
from fusebench.errors import Unstored
from fusebench.pool import InlinePool, Pool, WorkerLost, interpreter
from fusebench.rounding import FLUSHED
from fusebench.settings import Clock, Settings
from fusebench.worker import describe

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
    try:
        this.folder.mkdir(parents=True, exist_ok=True)
        for left in this.folder.glob(".inputs-*"):  # by a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=".inputs-", dir=this.folder))
    except OSError as error:
        raise Unstored(str(error)) from error
    try:
        with contextlib.nullcontext(pool) if pool else _pool(this) as workers:
            _start_workers(this, workers, cells)
            for _, group in itertools.groupby(cells, key=lambda c: (c.case, c.seed, c.inputs)):
                yield from _run_case(this, workers, list(group), scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _pool(this: Run) -> Pool | InlinePool:
    if this.settings.inline:
        return InlinePool(this.settings.device, this.roots, this.settings.threads)
    return Pool(this.settings.device, this.roots, this.folder, this.settings.threads)


def _start_workers(this: Run, pool: Any, cells: Sequence[Cell]) -> None:
    """All at once, because importing a framework takes seconds; and all ready before anything is timed."""
    wanted = {_home(this, cell) for cell in cells if _needs_worker(this, cell)}
    if wanted and this.settings.plan.time_s:
        wanted.add(("torch", interpreter(this.settings.pythons, "torch", "torch")))  # for the yardsticks
    for take in (pool.start, pool.get):
        for home in sorted(wanted):
            with this.clock.during("start_up"), contextlib.suppress(WorkerLost):  # its cells will say so, one by one
                take(*home)


def _needs_worker(this: Run, cell: Cell) -> bool:
    try:
        return not _cannot(this, cell)
    except Exception:  # a kernel.py that raises: its cells will say so, one by one
        return False


def _run_case(this: Run, pool: Any, cells: Sequence[Cell], scratch: Path) -> Iterator[dict[str, Any]]:
    """The cells of one case on the same inputs."""
    case = cells[0].case
    module = this.kernels[case.kernel].module
    with _folder(scratch) as folder:
        shared = CaseData(module, cells[0], folder, this.settings, this.clock)
        for cell in cells:
            record = records.new(cell, this.settings.device, _implementation(this, cell).file)
            record["computes"] = _implementation(this, cell).computes
            record |= {"time_s": this.settings.plan.time_s, "timeout_s": this.settings.timeout_s}
            try:
                record |= {"flops": int(module.flops(case)), "moved_bytes": int(module.moved_bytes(case))}
                if broken := _implementation(this, cell).broken:
                    record |= {"status": "failed", "reason": broken}
                elif reason := _cannot(this, cell):
                    record |= {"status": "skipped", "reason": reason}
                else:
                    rates = _rates(this, pool, case, record["flops"])
                    with this.clock.during("start_up"):
                        worker = pool.get(*_home(this, cell))
                    _run_cell(this, pool, worker, cell, record, shared, rates)
                    _release(this, pool, worker, cell)
            except WorkerLost as lost:
                record |= {"status": lost.status, "reason": lost.reason}
                pool.drop(*_home(this, cell))
            except Unstored as error:  # no cell is at fault, and a run that goes on later has this one before it
                raise Unstored(f"{cell.id}: {error}") from error
            except Exception as error:  # a kernel.py that raises, or inputs that do not fit in memory, cost their cells
                record |= describe(error)
            if record["status"] == "wrong":
                record["reproduce"] = command(this.kernels[case.kernel], cell, this.settings.device, this.roots[1:])
            record["ended"] = datetime.now(UTC).isoformat()
            records.append(this.folder, record)
            yield records.plain(record)


@contextlib.contextmanager
def _folder(scratch: Path) -> Iterator[Path]:
    """A folder for the files of one case. Raises Unstored if none can be made."""
    try:
        folder = Path(tempfile.mkdtemp(dir=scratch))
    except OSError as error:
        raise Unstored(str(error)) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _release(this: Run, pool: Any, worker: Any, cell: Cell) -> None:
    """Makes the worker let go of the cell. If that fails the worker is lost, but not what the cell left on record."""
    try:
        worker.held_bytes = worker.ask({"do": "release"}, this.settings.timeout_s).get("held_bytes", 0)
    except WorkerLost:
        pool.drop(*_home(this, cell))


def _run_cell(
    this: Run, pool: Any, worker: Any, cell: Cell, record: dict[str, Any], shared: CaseData, rates: dict[str, Any]
) -> None:  # fmt: skip
    """Fills the record of a cell that can run. Raises WorkerLost if its worker dies of it."""
    timeout = this.settings.timeout_s
    record |= {"device": worker.hello["device"], "packages": worker.hello["packages"], "python": worker.hello["python"]}

    def ask(phase: str, **message: Any) -> dict[str, Any]:
        this.on_phase(cell, phase)
        with this.clock.during(phase):
            return worker.ask(message | {"folder": str(shared.folder)}, timeout)

    built = ask(
        "compile", do="build", case=cell.case.as_dict(), implementation=cell.implementation, variant=cell.variant,
        names=shared.names, sets=shared.files,
    )  # fmt: skip
    interpreted = _interpreted(this, cell)

    def right(key: str, which: str, answer: dict[str, Any], set_: int) -> bool:
        """Whether the answer is ok, and its outputs right for that input set; if not, the record says why."""
        record.update({k: v for k, v in answer.items() if k not in ("outputs", "points", "fatal")})
        if answer["status"] != "ok":
            return False
        this.on_phase(cell, "parity")
        flushed = (FLUSHED,) if worker.hello["flushes_subnormals"] else ()
        points, part = (*built["points"], *flushed), _implementation(this, cell).computes
        verdict = shared.judge(answer["outputs"], points, part, set_, pool)
        record[key] = asdict(verdict)
        if not verdict.ok:
            record.update(status="wrong", reason=which + verdict.reason())
        return verdict.ok

    if not right("parity", "", built, 0):
        return
    if interpreted:  # the interpreter takes seconds a call, and has no state from call to call
        if this.settings.plan.time_s:
            record |= {"status": "skipped", "reason": "interpreted on the CPU: right, but never timed"}
        return
    if not right(
        "parity_again", "a later call, on other inputs in the same memory: ", ask("parity", do="again"), SETS - 1
    ):
        return
    if this.settings.plan.time_s:
        if not right(
            "parity_timed", "a timed call: ", ask("timing", do="time", plan=asdict(this.settings.plan)), SETS - 1
        ):
            record.pop("timing", None)
            return
        record["compile_s"] = max(0.0, built["compile_s"] - record["timing"]["median"])
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


def _interpreted(this: Run, cell: Cell) -> bool:
    return this.settings.device == "cpu" and _implementation(this, cell).without_gpu == "interpreted"


def _implementation(this: Run, cell: Cell) -> discovery.Implementation:
    return this.kernels[cell.case.kernel].implementations[cell.implementation]


def _home(this: Run, cell: Cell) -> tuple[str, str]:
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
