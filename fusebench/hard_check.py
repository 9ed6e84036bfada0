"""Every implementation once with all hard inputs, untimed, on its kernel's odd case, and on one like its own but small: a kernel has ways of
its own for sizes that vectors and tiles divide. Where its own is the odd one, as in `parity` by default, the other is one that they divide.

That is once a run for each variant, config, dtype, precision and set of options, however many cases of that kind and seeds they have. A cell
of such a case is looked at as it was built; others have it built beside them, interpreted ones the odd one alone, with a smaller batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusebench import hard
from fusebench.case_data import CaseData
from fusebench.cases import ODD, make_case
from fusebench.cell import Trial, release
from fusebench.contract import PASSED, Case, Cell
from fusebench.discovery import Kernel
from fusebench.records.record import Record
from fusebench.settings import Run

SMALL = 64  # what remains of a size when it is divided by this stays, so that the same vectors and tiles divide it
LARGER = (
    320,
    192,
)  # to what sizes are cut if that is enough, since kernels have ways of their own for more than 256, or 128
# Up to which a case is a small one: the reference takes NumPy a tenth of a second, and weights of which few are read, such as tables, little memory.
FLOPS, BYTES, LONGEST = 1e8, 4e6, 2**13
VECTOR = 16  # elements of the longest one, of what tensor cores multiply at once, and of the least tile
FEW = 7  # rows, or what else BATCH counts, for Triton's interpreter, to which seven calls of the odd case are minutes
# Of a kernel that has products and does not say which kinds it defines: what is left of such sums depends on their order.
OVERFLOWING = ("extreme",)
ONEDNN = ("inf",)  # of which its bfloat16 products on a CPU make NaN: no implementation's fault
Key = tuple[object, ...]


class HardCheck:
    """What is known of the implementations of a run on hard inputs. `folder` takes the inputs' files."""

    def __init__(self, run: Run, pool: Any, folder: Path):
        self.run, self.pool, self.folder = run, pool, folder
        self.found: dict[Key, Record] = {}
        self.shared: dict[Key, CaseData] = {}

    def before(self, trial: Trial) -> bool:
        """Whether a cell may begin: cases that are not its own are built and judged now, unless they were before."""
        for case in self._cases(trial):
            key = _key(trial.cell, case)
            if key not in self.found:
                if case == trial.cell.case:
                    continue
                self.found[key] = self._built(replace(trial.cell, case=case), trial.commit)
            if not self._noted(trial, self.found[key]):
                return False
        return True

    def built(self, trial: Trial) -> bool:
        """Whether a cell that was built may go on: if its case is one of them, it is judged now, unless it was before."""
        if trial.cell.case not in self._cases(trial):
            return True
        key = _key(trial.cell, trial.cell.case)
        if key not in self.found:
            self._judge(trial)
            self.found[key] = trial.record
        return self._noted(trial, self.found[key])

    def changed(self) -> list[str]:
        """The files of hard inputs that somebody else has changed; the next implementation gets others."""
        return [name for shared in self.shared.values() for name in shared.changed()]

    def _cases(self, trial: Trial) -> list[Case]:
        """What the cell's implementation is judged on."""
        if not self.run.settings.hard or trial.cell.inputs != "plain":
            return []
        kernel, case = self.run.kernels[trial.cell.case.kernel], trial.cell.case
        odd = odd_case(kernel, case, trial.interpreted)
        if trial.interpreted:
            return [odd]
        other = aligned_case(kernel, case) if case == odd else small_case(kernel, case)
        return list({one.id: one for one in (odd, other)}.values())

    def _built(self, cell: Cell, commit: str | None) -> Record:
        """The record of another case: `skipped` where the implementation cannot do it."""
        trial = Trial(self.run, cell, commit)
        with trial.recording_failures(self.pool):
            if trial.can_run():
                with self.run.clock.during("start_up"):
                    worker = self.pool.get(*trial.worker_key)
                trial.begin(worker, self.pool, self._shared(trial, "plain"))
                if trial.build():
                    self._judge(trial)
                elif trial.record.status != "skipped":
                    trial.end(
                        trial.record.status, f"case {cell.case.id}: {trial.record.reason}", trial.record.traceback
                    )
                release(self.pool, trial.worker_key, worker, self.run.settings.timeout_s)
        return trial.record

    def _judge(self, trial: Trial) -> None:
        """Judges the cell in hand on each kind of hard inputs that its kernel defines, until one is wrong."""
        # what is known of another case does not count here
        trial.record = replace(trial.record, parity=replace(trial.record.parity, hard=()))
        case, left_out = trial.cell.case, ["plain"]
        mathematics = self.run.kernels[case.kernel].mathematics
        if "tf32" in mathematics.precisions:
            left_out += ONEDNN if self.run.settings.device == "cpu" and case.dtype == "bfloat16" else ()
            left_out += OVERFLOWING if mathematics.hard is None else ()
        for kind in (k for k in hard.kinds(mathematics, case) if k not in left_out):
            if not trial.on_hard(kind, self._shared(trial, kind)):
                return

    def _shared(self, trial: Trial, kind: str) -> CaseData:
        """The inputs and judges of a case, which all implementations share."""
        cell = replace(trial.cell, inputs=kind)
        key = (cell.case.kernel, cell.case.id, cell.seed, kind)
        if key not in self.shared:
            folder = self.folder / f"hard{len(self.shared)}"
            folder.mkdir(parents=True, exist_ok=True)
            mathematics, settings = self.run.kernels[cell.case.kernel].mathematics, self.run.settings
            self.shared[key] = CaseData(mathematics, cell, folder, settings, self.run.clock)
        return self.shared[key]

    def _noted(self, trial: Trial, found: Record) -> bool:
        """Whether all is right by what was found; if not, the cell's record says what is wrong."""
        if found.status in PASSED:
            hard = found.parity.hard or trial.record.parity.hard  # none where the implementation cannot do that case
            trial.record = replace(trial.record, parity=replace(trial.record.parity, hard=hard))
            return True
        trial.record = replace(trial.record, parity=replace(trial.record.parity, hard=found.parity.hard))
        trial.end(found.status, str(found.reason), found.traceback)
        trial.record = replace(trial.record, reproduce=found.reproduce)
        return False


def odd_case(kernel: Kernel, case: Case, few: bool = False) -> Case:
    """The kernel's case `odd` with the dtype, precision and options of a case, its batch cut to a `few`; of a kernel without it, its
    smallest one."""
    mathematics = kernel.mathematics
    made = {n: make_case(kernel, n, case.dtype, case.precision, case.options, case.mode) for n in mathematics.cases}
    odd = made[ODD] if ODD in made else min(made.values(), key=mathematics.moved_bytes)
    sizes = {**odd.sizes, mathematics.batch: min(odd.sizes[mathematics.batch], FEW)}
    if not few or sizes == odd.sizes:
        return odd
    return make_case(kernel, sizes, case.dtype, case.precision, case.options, case.mode)


def aligned_case(kernel: Kernel, case: Case) -> Case:
    """The first of the kernel's named cases that vectors divide, or nearly so, with the dtype, precision and options of a case, its sizes
    cut to 64 and what is left: it costs little beside the odd one, which is the answer where no case has a size of 64."""
    mathematics = kernel.mathematics
    large = [name for name, sizes in mathematics.cases.items() if max(sizes.values()) >= SMALL]
    if not large:
        return odd_case(kernel, case)

    def undivided(name: str) -> int:
        return sum(size > VECTOR and size % VECTOR > 0 for size in mathematics.cases[name].values())

    sizes = mathematics.cases[min(large, key=undivided)]
    cut = {n: SMALL + s % SMALL if s > 2 * SMALL else s for n, s in sizes.items()}
    return make_case(kernel, cut, case.dtype, case.precision, case.options, case.mode)


def small_case(kernel: Kernel, case: Case) -> Case:
    """The case itself where it is a small one, else one with smaller sizes that the same vectors and tiles divide: its batch alone is cut if
    that is enough, else all sizes that are larger, as little as may be."""
    mathematics, sizes = kernel.mathematics, case.sizes

    def cut(base: int, names: Iterable[str]) -> dict[str, int]:
        return {n: base + s % SMALL if n in names and s > base + SMALL else s for n, s in sizes.items()}

    candidates = [sizes, cut(SMALL, (mathematics.batch,))]
    for base in LARGER:
        all_cut = cut(base, sizes)
        candidates += [all_cut, all_cut | {mathematics.batch: min(all_cut[mathematics.batch], 2)}]
    for smaller in (*candidates, cut(SMALL, sizes)):
        made = case
        if smaller != sizes:
            made = make_case(kernel, smaller, case.dtype, case.precision, case.options, case.mode)
        few = mathematics.flops(made) <= FLOPS and mathematics.moved_bytes(made) <= BYTES
        if few and max(smaller.values()) <= LONGEST:
            break
    return made


def _key(cell: Cell, case: Case) -> Key:
    return case.id, case.kernel, cell.implementation, cell.variant, tuple(sorted(cell.config.items()))
