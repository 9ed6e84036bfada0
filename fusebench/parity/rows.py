"""Which rows of an output are looked at where not all can be."""

from __future__ import annotations

import numpy as np

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


def suspicious(output: np.ndarray, axis: int, count: int) -> list[int]:
    """The `count` rows that differ most from the others by what needs no reference: what is not finite, how many zeros, how
    large, and repeating the row before. The most suspicious come first."""
    rows = np.moveaxis(output, axis, 0)
    height, step = len(rows), max(1, AT_A_TIME * len(rows) // max(output.size, 1))
    figures = np.empty((4, height))
    last = None
    for first in range(0, height, step):
        part = rows[first : first + step].astype(np.float32).reshape(-1, max(1, output.size // max(height, 1)))
        good = np.isfinite(part)
        with np.errstate(over="ignore"):
            size = np.sqrt((np.where(good, part, 0).astype(np.float64) ** 2).mean(axis=1))
        before = np.concatenate([part[:1] + 1 if last is None else last, part[:-1]])
        figures[:, first : first + step] = (
            (~good).mean(axis=1), (part == 0).mean(axis=1), np.log2(size + 1e-300), (part == before).mean(axis=1),
        )  # fmt: skip
        last = part[-1:]
    middle = np.median(figures, axis=1, keepdims=True)
    away = np.abs(figures - middle)
    spread = np.median(away, axis=1, keepdims=True)
    far = (away / np.maximum(spread, 1e-6)).max(axis=0)
    return [int(r) for r in np.argsort(-far, kind="stable")[:count]]
