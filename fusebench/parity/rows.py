"""Which rows of an output are looked at where not all can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusebench.parity.elements import stored

BLOCKS = (16, 32, 64, 128, 256)  # of the usual tiles: a mistake shows at their edges
AT_A_TIME = 2**22  # elements that are widened to float32 at a time


def edges(height: int) -> list[int]:
    """The first and the last row, then those at the edges of the usual blocks: of the first and of the last one."""
    at = [r for block in BLOCKS for r in (block - 1, block, (height - 1) // block * block, height // block * block - 1)]
    return list(dict.fromkeys(r for r in (0, height - 1, *at) if 0 <= r < height))


def chosen(height: int, most: int, seed: int) -> np.ndarray:
    """At most `most` row numbers, sorted: in turn edges and rows drawn at random."""
    drawn = np.random.default_rng([seed, height]).permutation(height)[:most]
    known = edges(height)
    mixed = [int(r) for pair in zip(known, drawn, strict=False) for r in pair]
    wanted = dict.fromkeys([*mixed, *known, *map(int, drawn)])
    return np.sort(list(wanted)[:most])


def taken(output: np.ndarray, places: Mapping[int, np.ndarray]) -> np.ndarray:
    """Those numbers along those axes."""
    for axis, numbers in places.items():
        output = np.take(output, numbers, axis)
    return output


def drawn_from(shape: Sequence[int], slices: int, judged: int, elements: float, fewest: int) -> tuple[int, int] | None:
    """The longest axis before the last of an output of that shape, and how many numbers along it have so many elements; None where all have.
    Where so many slices are `judged` their axis is another one, and these alone count."""
    size, lengths = math.prod(shape), list(shape)
    if judged:
        size, lengths[slices] = size // shape[slices] * judged, 0
    if not lengths:
        return None
    axis = int(np.argmax(lengths[:-1] or lengths))
    most = max(fewest, int(shape[axis] * elements / max(1, size)))
    return (axis, most) if most < lengths[axis] else None


def computed(exact: Any, axis: int, dtype: str) -> np.ndarray:
    """Along the axis, whether anything was computed: some exact value is none of the dtype, as in table rows that a step changed, and
    not in those that it left or that have a gradient of 0."""
    others = tuple(a for a in range(exact.ndim) if a != axis)
    found = (stored(exact, dtype) != exact).any(axis=others) if others else stored(exact, dtype) != exact
    return found if isinstance(found, np.ndarray) else found.tensor.cpu().numpy()


def telling(told: np.ndarray, most: int, seed: int) -> np.ndarray:
    """At most `most` numbers, sorted: half of them, if there are so many, where `told` says that something was computed, the others
    as `chosen` has them."""
    hits = np.flatnonzero(told)
    if len(hits) == len(told):
        return chosen(len(told), most, seed)
    first = np.random.default_rng([seed, len(told), 1]).permutation(hits)[: most // 2]
    return np.union1d(first, chosen(len(told), most - len(first), seed))


def suspicious(output: np.ndarray, axis: int, count: int) -> list[int]:
    """At most `count` rows that differ most from the middle one by what needs no reference: how much is not finite, how many
    zeros, how large, and repeating the row before; of each of these in turn, the most suspicious first."""
    if not output.size:
        return []
    rows = np.moveaxis(output, axis, 0)
    height = len(rows)
    step, width = max(1, AT_A_TIME * height // output.size), output.size // height
    figures, last = np.empty((4, height)), np.full((1, width), np.nan, np.float32)
    for first in range(0, height, step):
        part = rows[first : first + step].astype(np.float32).reshape(-1, width)
        good = np.isfinite(part)
        size = np.sqrt((np.where(good, part, 0).astype(np.float64) ** 2).mean(axis=1))
        figures[:, first : first + step] = (
            (~good).mean(axis=1), (part == 0).mean(axis=1), np.log2(size + 1e-300),
            (part == np.concatenate([last, part[:-1]])).mean(axis=1),
        )  # fmt: skip
        last = part[-1:]
    away = np.abs(figures - np.median(figures, axis=1, keepdims=True))
    order = np.argsort(-away, axis=1, kind="stable")[:, :count]
    in_turn = [int(r) for rank in range(order.shape[1]) for f, r in enumerate(order[:, rank]) if away[f, r] > 0]
    return list(dict.fromkeys(in_turn))[:count]
