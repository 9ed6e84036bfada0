"""A Gaussian process over the configs that fit: where among those that are left is the largest improvement to be expected?

Its inputs are the places of the values in the space, scaled to [-1, 1], its values the logarithms of the times. Neighbouring values of a
tunable act alike, and tunables act together: both are in the kernel. Samplers over a box ask for the same config twice, and for ones that do
not fit; here the whole set is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from fusebench.contract import Tunable

WIDTH = 1.0  # of the kernel, where a tunable's values span 2
NOISE = 1e-3  # of a time, as a share of the variance of all: a median of many calls is nearly exact
MOST = 300  # times, the fastest, that the process is fitted to: more take seconds


@dataclass(frozen=True)
class Surrogate:
    """The places (configs, tunables) of the configs that fit."""

    places: np.ndarray

    def next(self, times: Mapping[int, float], left: Sequence[int]) -> int:
        """Of the rows `left`, the one with the largest expected improvement over `times`, seconds by row, of two rows at least."""
        known = sorted(times, key=times.__getitem__)[:MOST]
        values = np.log([times[row] for row in known])
        values = (values - values.mean()) / max(float(values.std()), 1e-9)
        ours, rows = self.places[known], list(left)
        covariance = _kernel(ours, ours) + NOISE * np.eye(len(known))
        across = _kernel(self.places[rows], ours)
        solved = np.linalg.solve(covariance, np.column_stack([values, across.T]))
        mean = across @ solved[:, 0]
        spread = np.sqrt(np.maximum(1e-9, 1 - np.einsum("ij,ji->i", across, solved[:, 1:])))
        score = (values.min() - mean) / spread
        density = np.exp(-(score**2) / 2) / np.sqrt(2 * np.pi)
        improvement = spread * (score * special.ndtr(score) + density)
        return rows[int(np.argmax(np.round(improvement, 9)))]  # a tie is one whatever the order of a sum


def over(space: Mapping[str, Sequence[Tunable]], configs: Sequence[Mapping[str, Tunable]]) -> Surrogate:
    """That of configs whose values are in the space."""
    sides = {name: list(values) for name, values in space.items()}
    places = [
        [values.index(c[name]) / max(1, len(values) - 1) * 2 - 1 for name, values in sides.items()] for c in configs
    ]
    return Surrogate(np.array(places, float).reshape(len(configs), len(sides)))


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    distance = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.asarray(np.exp(-np.maximum(distance, 0) / (2 * WIDTH**2)))
