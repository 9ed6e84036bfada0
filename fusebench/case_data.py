"""What the cells of one case share: its input sets, as files that every worker reads, and who judges their outputs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fusebench import inputs, memory
from fusebench.contract import Cell, Mathematics
from fusebench.errors import StorageError
from fusebench.parity import budget, kernel_check
from fusebench.parity.evaluations import Evaluations
from fusebench.parity.judge import Judge
from fusebench.parity.verdict import Asked, Verdict
from fusebench.settings import Clock, Settings
from fusebench.untouched import Untouched
from fusebench.workers import protocol
from fusebench.workers.pool import WorkerLost, interpreter

# Input sets in the ring, the outputs on both of which are judged: the first call's and the repeated one's. L2 is flushed explicitly
# and every call gets copies, so that the ring only has to keep outputs from being reused.
SETS = 2
UNSEEN = SETS  # the number of the set that calls of the parent's clock get


def reference_key(settings: Settings) -> tuple[str, str]:
    """The worker of the reference on the device."""
    return "reference", interpreter(settings.pythons, "torch", "torch")


class CaseData:
    """What the cells of one case share: the input sets on disk, and the judge of each set, made when first asked for."""

    def __init__(self, mathematics: Mathematics, cell: Cell, folder: Path, settings: Settings, clock: Clock):
        self.mathematics, self.folder, self.settings, self.clock = mathematics, folder, settings, clock
        self.case, self.seed, self.kind = cell.case, cell.seed, cell.inputs
        self.too_large = ""
        self.judges: dict[tuple[int, str], Judge] = {}
        self.untouched = Untouched()

    @cached_property
    def sets(self) -> list[dict[str, Any]]:
        """Raises MemoryError, the second time at once, where they do not fit into the host's free memory, and what kernel_check says."""
        if self.too_large:
            raise MemoryError(self.too_large)
        kernel_check.check(self.mathematics, self.case, "", self.settings.timeout_s)
        try:
            with self.clock.during("inputs"), memory.limited():
                return inputs.make_sets(self.mathematics, self.case, self.seed, SETS, self.kind)
        except MemoryError as error:
            self.too_large = str(error)
            raise

    @cached_property
    def unseen(self) -> dict[str, Any]:
        """One more set, number `UNSEEN`, with the weights of the others. It is made when it is first asked for, behind the samples."""
        weights = {name: array for name, array in self.sets[0].items() if array is self.sets[-1][name]}
        with self.clock.during("inputs"), memory.limited():
            return inputs.make_set(self.mathematics, self.case, self.seed, UNSEEN, weights, self.kind)

    @cached_property
    def files(self) -> list[list[inputs.Stored]]:
        """Of each set, the file and dtype of each input. Raises StorageError where the disk has no room for them now, and
        ValueError where it never had."""
        sets = self.sets
        self.folder.mkdir(parents=True, exist_ok=True)  # an implementation before may have taken it away
        needed = sum({id(a): a.nbytes for arrays in sets for a in arrays.values()}.values())
        disk = shutil.disk_usage(self.folder)
        for size, has, kind in ((disk.total, "has", ValueError), (disk.free, "has free", StorageError)):
            if needed > size:
                raise kind(f"its input files take {needed / 1e9:.3g} GB, the results' disk {has} {size / 1e9:.3g} GB")
        with self.clock.during("inputs"):
            files = inputs.save_sets(sets, self.folder)
        self.own(*{self.folder / stored.file for one in files for stored in one})
        return files

    @cached_property
    def unseen_files(self) -> list[inputs.Stored]:
        """Of the set `UNSEEN`. Raises StorageError where the disk has no room for them."""
        new = [name for name, array in self.unseen.items() if array is not self.sets[0][name]]
        with self.clock.during("inputs"):
            saved = inputs.save([self.unseen[name] for name in new], self.folder, "unseen-input")
        self.own(*(self.folder / stored.file for stored in saved))
        files = dict(zip(self.names, self.files[0], strict=True)) | dict(zip(new, saved, strict=True))
        return list(files.values())

    def _set(self, set_: int) -> dict[str, Any]:
        return self.unseen if set_ == UNSEEN else self.sets[set_]

    def _files(self, set_: int) -> tuple[inputs.Stored, ...]:
        return tuple(self.unseen_files if set_ == UNSEEN else self.files[set_])

    def own(self, *files: Path) -> None:
        """Nobody else writes these files from now on."""
        self.untouched.note(*files)

    def changed(self) -> list[str]:
        """The files that somebody else has changed; of the inputs the next cell gets others."""
        changed = self.untouched.changed()
        if changed:
            for written in ("files", "unseen_files"):
                self.__dict__.pop(written, None)
            self.untouched.note(*self.untouched.known)
        return changed

    @property
    def names(self) -> list[str]:
        """Of the inputs, in their order."""
        return list(self.sets[0])

    def judge(
        self, outputs: Sequence[inputs.Stored], points: Sequence[str], part: str, set_: int, pool: Any
    ) -> Verdict:
        """The verdict on the outputs in those files, which were computed from that input set by the kernel or a part of it. The files
        are gone then: the next implementation is not to find a right answer on the disk."""
        try:
            verdict = self._verdict(outputs, points, part, set_, pool)
            names = self._judge(set_, part).mathematics.outputs
            return replace(verdict, name=names[verdict.output]) if len(names) > 1 else verdict
        finally:
            self._take_away(outputs)

    def _take_away(self, answers: Sequence[inputs.Stored]) -> None:
        for stored in answers:
            (self.folder / stored.file).unlink(missing_ok=True)

    def _verdict(
        self, outputs: Sequence[inputs.Stored], points: Sequence[str], part: str, set_: int, pool: Any
    ) -> Verdict:
        with self.clock.during("parity"):
            judge = self._judge(set_, part)
            large = judge.partial or (judge.large and self.settings.device != "cpu")
            if large and not judge.knows(points):
                self._evaluate_judged(judge, points, set_, pool)
            with memory.limited():
                arrays = inputs.load(outputs, self.folder, mapped=True)
                verdict = judge.judge(arrays, points)
                others = judge.view.judged is not None or judge.seen_whole(self.settings.device)
                if not verdict.ok or not others or set_ == UNSEEN:  # some rows tell whether it was computed at all
                    return replace(verdict, unseen=judge.undrawn())
                asked = judge.ask(arrays, points, self.settings.device)
            return self._other_rows(judge, verdict, asked, outputs, set_, pool)

    def _judge(self, set_: int, part: str) -> Judge:
        if (set_, part) not in self.judges:
            kernel_check.check(self.mathematics, self.case, part, self.settings.timeout_s)
            self.judges[set_, part] = Judge(
                self.mathematics, self.case, self._set(set_), self.seed, self.settings.rows_seed, part, self.kind,
            )  # fmt: skip
        return self.judges[set_, part]

    def _evaluate_judged(self, judge: Judge, points: Sequence[str], set_: int, pool: Any) -> None:
        """Has the judged rows evaluated on the device; where that fails the judge does it itself, but where all rows are needed, which
        takes it too long: raises RuntimeError, or WorkerLost where the reference cannot be started here."""
        message = protocol.EvaluateRows(
            judge.judged_rows(points), self._files(set_), str(self.folder), budget.DRAWS
        )  # fmt: skip
        reply = self._ask_reference(message, protocol.EvaluatedRows, pool)
        if isinstance(reply, protocol.EvaluatedRows):
            with memory.limited():
                stacked = inputs.load(reply.outputs, self.folder)
                self._take_away(reply.outputs)
                exact, staged, *draws = zip(*stacked, strict=True)
                found = Evaluations(exact, staged, draws, frozenset(reply.points), reply.by_number)
                judge.learn(points, found, reply.drawn)
        elif judge.view.most:
            reason = f"no reference of a gradient that sums over all rows: {reply.reason}"
            if reply.status == "skipped":
                raise WorkerLost("skipped", reason)
            raise RuntimeError(reason)

    def _ask_reference(
        self, message: protocol.Request, expected: type[protocol.R], pool: Any
    ) -> protocol.R | protocol.Refused:
        """What the reference on the device replies; Refused too where it was lost."""
        key = reference_key(self.settings)
        try:
            reply: protocol.R | protocol.Refused = pool.get(*key, beside=True).ask(
                message, expected, self.settings.timeout_s
            )
            pool.get(*key, beside=True).ask(protocol.Release(), protocol.Released, self.settings.timeout_s)
        except WorkerLost as lost:
            pool.drop(*key)
            return protocol.Refused(lost.status, lost.reason)
        return reply

    def rows(self, part: str) -> protocol.MoveRows | None:
        """The axes of rows that may stand in any order, where they may; of a kernel whose first output was judged."""
        movable = self.judges[0, part].movable_rows()
        return None if movable is None else protocol.MoveRows(*movable, self.settings.rows_seed)

    def _other_rows(
        self, judge: Judge, verdict: Verdict, asked: Asked, outputs: Sequence[inputs.Stored], set_: int, pool: Any
    ) -> Verdict:  # fmt: skip
        """The verdict with the rows that the judge did not see, by the reference on the device."""
        message = protocol.CheckRows(asked, self._files(set_), tuple(outputs), str(self.folder))
        reply = self._ask_reference(message, protocol.CheckedRows, pool)
        if isinstance(reply, protocol.Refused):
            return replace(verdict, unseen=judge.undrawn() or f"the reference on the device: {reply.reason}")
        widened = judge.widened(verdict, reply.worst, asked)
        if not (missing := judge.unseen(asked)):
            return widened
        looked = judge.view
        return replace(widened, unseen=f"without a GPU, {missing} of {looked.height} {looked.named} have no reference")
