"""A training run: steps, and at times a line in the log, an AUC of the held-out rows and a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusebench.data.reading import Batch
from fusebench.training import checkpoint, log
from fusebench.training.checkpoint import Checkpoint
from fusebench.training.log import Line
from fusebench.training.program import Trainer
from fusebench.training.rows import Rows


class Diverged(Exception):
    """The loss is no number any more; the message says where."""


@dataclass(frozen=True)
class Every:
    """After how many steps there is a line in the log, an AUC, and a checkpoint. The last step has all three."""

    log: int
    evaluate: int
    checkpoint: int

    def due(self, step: int, last: int) -> tuple[bool, bool, bool]:
        """Which of them are due. Where there is an AUC or a checkpoint there is a line, so that nothing is pending then."""
        evaluate, save = (step % n == 0 or step == last for n in (self.evaluate, self.checkpoint))
        return evaluate or save or step % self.log == 0, evaluate, save


@dataclass
class Loop:
    """A run in hand: `lines` are its log so far, `done` the steps whose parameters the trainer has, `saved` those of the last checkpoint."""

    trainer: Trainer
    rows: Rows
    test: Batch
    folder: Path
    run: Mapping[str, Any]
    keys: Mapping[str, str]
    lines: list[Line]
    done: int = 0
    saved: int = 0

    def train(self, steps: int, every: Every, bar: Any) -> None:
        """Up to step number `steps`. Raises Diverged, with the last checkpoint as it was, and StorageError."""
        task = bar.add_task("compiling", total=steps, completed=self.done)
        batches, pending = self.rows.training(self.done), list[Any]()
        spent, begin = 0.0, time.perf_counter()
        for step in range(self.done + 1, steps + 1):
            pending.append(self.trainer.step(next(batches)))
            due, evaluate, save = every.due(step, steps)
            if due:
                loss = math.fsum(self.trainer.losses(pending)) / len(pending)  # waits for the device
                spent += time.perf_counter() - begin
                if not math.isfinite(loss):
                    raise Diverged(f"the loss is {loss} between the steps {step - len(pending) + 1} and {step}")
                self._note(step, loss, evaluate, spent)
                if save:
                    self._save(step)
                pending, begin = [], time.perf_counter()
            self.done = step
            bar.update(task, description=self.shown(), advance=1)

    def _note(self, step: int, loss: float, evaluate: bool, spent: float) -> None:
        auc = self.trainer.auc(self.test) if evaluate else None
        line = Line(step, loss, auc, step * self.rows.batch, round(spent, 6), self.trainer.chosen.label)
        self.lines.append(line)
        log.append(line, self.folder)

    def _save(self, step: int) -> None:
        model = self.trainer.model.described()
        checkpoint.save(Checkpoint(step, model, self.run, self.keys, self.trainer.parameters()), self.folder)
        self.saved = step

    def shown(self) -> str:
        """The last loss and AUC, for the progress bar."""
        auc = next((line.auc for line in reversed(self.lines) if line.auc is not None), None)
        words = [f"loss {self.lines[-1].loss:.4f}"] if self.lines else ["steps"]
        return ", ".join(words + ([f"AUC {auc:.4f}"] if auc is not None else []))
