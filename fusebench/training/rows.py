"""The rows of a training run: the first ones of a file are held out, all others come in the file's order, again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusebench.data.reading import Batch, DataFile
from fusebench.errors import UsageError


@dataclass(frozen=True)
class Rows:
    """`held_out` rows of a file, in whole batches, are never trained on. A rest at the end of the file that fills no batch is left out."""

    source: DataFile
    batch: int
    held_out: int
    log1p: bool

    @property
    def batches(self) -> int:
        """How many batches of an epoch are trained on."""
        return (self.source.rows - self.held_out) // self.batch

    def check(self) -> None:
        """Raises UsageError where nothing is left to train on."""
        if self.batches < 1:
            raise UsageError(
                f"{self.source.file} has {self.source.rows} rows: expected {self.held_out + self.batch} at least, {self.held_out} that are held out "
                f"and a batch of {self.batch}; batch= and held_out= can be less"
            )

    def test(self) -> Batch:
        """The rows that are held out, together. Raises UsageError where they have one label alone."""
        parts = list[Batch]()
        for batch in self.source.batches(self.batch, self.log1p):
            if len(parts) == self.held_out // self.batch:
                break
            parts.append(batch)
        dense, ids, labels = (np.concatenate([getattr(p, name) for p in parts]) for name in ("dense", "ids", "labels"))
        if labels.min() == labels.max():
            raise UsageError(
                f"{self.source.file}: the first {self.held_out} rows, which are held out, all have the label {labels[0, 0]:.0f}: "
                "an AUC needs both; held_out= can be more"
            )
        return Batch(dense, ids, labels)

    def training(self, done: int) -> Iterator[Batch]:
        """The batches from number `done` on, without end."""
        skip = self.held_out // self.batch + done % self.batches
        while True:
            for number, batch in enumerate(self.source.batches(self.batch, self.log1p)):
                if number >= skip and len(batch.labels) == self.batch:
                    yield batch
            skip = self.held_out // self.batch


def held_out(rows: int, batch: int, most: int) -> int:
    """A tenth of the rows, `most` at the most, in whole batches, one at least."""
    return max(1, min(rows // 10, most) // batch) * batch
