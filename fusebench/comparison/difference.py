"""How far two outputs of one shape are apart, and where they are so the most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

CHUNK = 2**22  # elements that are compared at one time, in float64


@dataclass(frozen=True)
class Place:
    """An element: its index, and what stands there on either side."""

    index: tuple[int, ...]
    a: float
    b: float


@dataclass(frozen=True)
class Difference:
    """The largest |A - B| and the largest |A - B| ÷ max(|A|, |B|), where they are, and how many of the `elements` differ. NaN and an
    infinity are as far from all else as can be, and at 0 from themselves."""

    absolute: float
    relative: float
    at: Place | None
    relative_at: Place | None
    differing: int
    elements: int


def difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """Compares two arrays of one shape; their dtypes may differ. Raises ValueError for other shapes."""
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape}: outputs of one shape can be compared")
    absolute = relative = 0.0
    at = relative_at = None
    differing = 0
    for begin, x, y in _chunks(a, b):
        distance = distances(x, y)
        with np.errstate(all="ignore"):
            shares = np.where(distance == 0, 0.0, distance / np.maximum(np.abs(x), np.abs(y)))
        shares = np.where(np.isnan(shares), np.inf, shares)
        differing += int(np.count_nonzero(distance))
        for values in (distance, shares):
            n = int(np.argmax(values))
            place = Place(tuple(map(int, np.unravel_index(begin + n, a.shape))), float(x[n]), float(y[n]))
            if values is distance and distance[n] > absolute:
                absolute, at = float(distance[n]), place
            elif values is shares and shares[n] > relative:
                relative, relative_at = float(shares[n]), place
    return Difference(absolute, relative, at, relative_at, differing, a.size)


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|A - B| of float64 values."""
    with np.errstate(all="ignore"):
        distance = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _chunks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Elements in order, in float64, with the number of the first."""
    flat = a.reshape(-1), b.reshape(-1)
    for begin in range(0, a.size, CHUNK):
        x, y = (part[begin : begin + CHUNK].astype(np.float64) for part in flat)
        yield begin, x, y
