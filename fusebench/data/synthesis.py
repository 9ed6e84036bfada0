"""Rows like Criteo's, drawn from a seed, with a click probability that is known.

A click's log-odds are a sum: a weight for each log(1 + count), an effect for each known id. Weights and effects are the same for
every seed, so that a model trained on one file can be tried on another. A missing count adds what a count of 0 does, an id that
is missing or unknown adds nothing: a linear model of what a reader sees can reach the planted AUC, and none can pass it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fusebench.data.schema import DENSE, LAST_ID, SPARSE, Feature

BLOCK = 2**17  # rows that are drawn together, and a row group of the file
LEAST = 3  # known values of the first id column, as in Criteo's data
SIGNAL = 2017  # seeds the weights and effects
BIAS = -1.9  # the mean of the log-odds: about 1 click in 4, as in Criteo's data
DENSE_DEVIATION, SPARSE_DEVIATION = 1.4, 1.4  # of the log-odds, by all counts and by all ids
UNKNOWN_SHARE = 1 / 32  # of the ids that are there: drawn from all 2³²
# shares of missing values, by columns in turn: from none to nearly half, as in Criteo's data
DENSE_MISSING, SPARSE_MISSING = (0.0, 0.04, 0.2, 0.45), (0.0, 0.0, 0.03, 0.4)
SCHEMA = pa.schema(
    [
        pa.field("labels", pa.int32()),
        *(pa.field(f"DENSE_{n}", pa.int32()) for n in range(DENSE)),
        *(pa.field(f"SPARSE_{n}", pa.uint32()) for n in range(SPARSE)),
    ]
)


@dataclass(frozen=True)
class Signal:
    """What is planted. Counts are floor(exp(mean + deviation * normal)); `weights` (13,) are per deviation of their logarithm,
    `bias` is what makes the mean of the log-odds BIAS. `effects` has an array (L,) float32 for each id column, the effect of each
    known value."""

    bias: float
    means: np.ndarray
    deviations: np.ndarray
    weights: np.ndarray
    features: tuple[Feature, ...]
    effects: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Block:
    """Rows as they are written, with the planted probability (n,) of a click and the labels (n,) that were drawn by it."""

    rows: pa.RecordBatch
    labels: np.ndarray
    probability: np.ndarray


def plant(cardinality: int) -> Signal:
    """The signal, and the known values: 3 in the first id column, `cardinality` in the last, in equal ratios between."""
    rng = np.random.default_rng(SIGNAL)
    means, deviations = rng.uniform(0.5, 3, DENSE), rng.uniform(0.7, 1.4, DENSE)
    weights = rng.standard_normal(DENSE)
    weights *= DENSE_DEVIATION / np.linalg.norm(weights)
    missing = np.resize(DENSE_MISSING, DENSE) * weights / deviations * -means  # what missing counts add on average
    sizes = np.rint(LEAST * (cardinality / LEAST) ** (np.arange(SPARSE) / (SPARSE - 1))).astype(int)
    features = tuple(Feature(int(size), _known(n, size)) for n, size in enumerate(sizes))
    effects = tuple(_effects(n, size) for n, size in enumerate(sizes))
    return Signal(BIAS - float(missing.sum()), means, deviations, weights, features, effects)


def _known(column: int, size: int) -> np.ndarray:
    """`size` values that look random, none twice and none 0: a one-to-one hash of 32 bits (MurmurHash3's last step) of 1, 2, 3, …"""
    x = np.arange(1, size + 1, dtype=np.uint32) + np.uint32(column << 24)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return (x ^ (x >> np.uint32(16))).astype(np.int64)


def _effects(column: int, size: int) -> np.ndarray:
    """Normal, with mean 0 and the same deviation in every column, when ids are drawn as `_ids` does."""
    effects = np.random.default_rng([SIGNAL, column]).standard_normal(size)
    share = np.diff(np.log(np.arange(1, size + 2))) / math.log(size + 1)
    effects -= share @ effects
    effects *= SPARSE_DEVIATION / math.sqrt(SPARSE) / math.sqrt(share @ effects**2)
    return effects.astype(np.float32)


def draw(signal: Signal, rows: int, seed: int) -> Iterator[Block]:
    """All rows, a block at a time. The same seed and number of rows give the same blocks."""
    for number, begin in enumerate(range(0, rows, BLOCK)):
        yield _block(signal, min(BLOCK, rows - begin), np.random.default_rng([seed, number]))


def _block(signal: Signal, rows: int, rng: np.random.Generator) -> Block:
    odds = np.full(rows, signal.bias)
    columns = []
    for n in range(DENSE):
        mean, deviation = signal.means[n], signal.deviations[n]
        counts = np.exp(mean + deviation * rng.standard_normal(rows)).astype(np.int32)
        missing = rng.random(rows, np.float32) < DENSE_MISSING[n % len(DENSE_MISSING)]
        counts[missing] = 0
        odds += signal.weights[n] / deviation * (np.log1p(counts) - mean)
        columns.append(pa.array(counts, mask=missing))
    for n, (feature, effects) in enumerate(zip(signal.features, signal.effects, strict=True)):
        ids, added, missing = _ids(feature, effects, SPARSE_MISSING[n % len(SPARSE_MISSING)], rows, rng)
        odds += added
        columns.append(pa.array(ids, mask=missing))
    probability = 1 / (1 + np.exp(-odds))
    labels = (rng.random(rows) < probability).astype(np.int32)
    return Block(pa.record_batch([pa.array(labels), *columns], schema=SCHEMA), labels, probability)


def _ids(
    feature: Feature, effects: np.ndarray, share: float, rows: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids (rows,) uint32, what each adds to the log-odds, and which are missing. Known value number n comes about as often as 1/n."""
    size = len(feature.known)
    rank = np.minimum((np.exp(math.log(size + 1) * rng.random(rows)) - 1).astype(np.int64), size - 1)
    ids, added = feature.known.astype(np.uint32)[rank], effects[rank]
    chance = rng.random(rows, np.float32)
    missing = chance < share
    unknown = np.flatnonzero(chance >= 1 - UNKNOWN_SHARE * (1 - share))
    ids[unknown] = rng.integers(0, LAST_ID, len(unknown), np.uint32, endpoint=True)
    added[unknown] = 0
    added[missing] = 0
    return ids, added, missing
