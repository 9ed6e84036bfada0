"""The area under the ROC curve of any number of rows, in constant memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

BINS = 2**16  # of the probability: rows that share one count as ties, which moves the area by less than 1e-4


@dataclass
class Auc:
    """How many rows of each label had a probability in each bin."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros((2, BINS), np.int64))

    def add(self, labels: np.ndarray, probabilities: np.ndarray) -> None:
        """Counts rows in: labels of 0 and 1 and probabilities of 0 … 1, arrays of one size. Raises ValueError for another probability."""
        probabilities = np.ravel(probabilities)
        if not ((probabilities >= 0) & (probabilities <= 1)).all():  # false for NaN
            raise ValueError("a probability is not within 0 … 1")
        bins = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
        self.counts += np.bincount(np.ravel(labels).astype(np.int64) * BINS + bins, minlength=2 * BINS).reshape(2, BINS)

    def value(self) -> float:
        """How often a row with label 1 had the higher probability than one with label 0, 0.5 for a tie; NaN where a label is missing."""
        zeros, ones = self.counts.astype(float)
        pairs = zeros.sum() * ones.sum()
        below = np.cumsum(zeros) - zeros
        return float((ones * (below + zeros / 2)).sum() / pairs) if pairs else float("nan")
