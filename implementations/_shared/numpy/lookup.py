"""Hashed look-ups in NumPy, for kernel.py files: tables below one another, known values, ids, and the row of each id.

`case` has the sizes M, F, V, D and the option `hashing`. implementations/embedding/kernel.py says what the arrays are.
"""

import numpy as np

LAST_ID = 2**32 - 1


def cardinalities(case):
    """V_f (F,) int64: from a few rows to V in equal ratios, as the columns of Criteo's data run from 3 values to 10 million."""
    F, V = case.size("F", "V")
    return np.maximum(1, np.rint(float(V) ** (np.arange(1, F + 1) / F))).astype(np.int64)


def known_values(case):
    """The V_f - 1 known values of each feature, int64, the same for every seed, so that `draw` can draw from them.

    They are random, with duplicates; every other feature knows the least and the greatest id.
    """
    found = []
    for f, rows in enumerate(cardinalities(case)):
        values = np.random.default_rng([2017, f]).integers(0, LAST_ID + 1, rows - 1)
        if len(values) > 2 and f % 2 == 0:
            values[len(values) // 2], values[len(values) // 3] = LAST_ID, 0
        if len(values) > 5:
            values[-1], values[len(values) // 4] = values[1], values[2]
        found.append(values)
    return found


def draw(case, rng):
    """ids (M, F): long-tailed over the known values (value number n as often as 1/n); one in 16 is drawn from all ids, and one
    in 32 is an edge of signed or unsigned 32 bits. The last is always 2³² - 1."""
    M, F = case.size("M", "F")
    ids = rng.integers(0, LAST_ID + 1, (M, F))
    for f, values in enumerate(known_values(case)):
        if len(values):
            rank = (len(values) + 1.0) ** rng.random(M) - 1  # log-uniform
            known = values[np.minimum(rank.astype(np.int64), len(values) - 1)]
            ids[:, f] = np.where(rng.random(M) < 1 / 16, ids[:, f], known)
    edges = rng.choice(np.array([0, 2**31 - 1, 2**31, LAST_ID]), (M, F))
    ids = np.where(rng.random((M, F)) < 1 / 32, edges, ids)
    ids[-1, -1] = LAST_ID
    return ids


def weights(case, rng):
    """tables (sum V_f + 1, D), standard normal but for the last row, NaN; offsets (F + 1,); with hashing=lookup also known."""
    offsets = np.concatenate([[0], np.cumsum(cardinalities(case))])
    tables = rng.standard_normal((int(offsets[-1]) + 1, case.sizes["D"]), dtype=np.float32)
    tables[-1] = np.nan
    arrays = {"tables": tables, "offsets": offsets}
    if case.options["hashing"] == "lookup":
        arrays["known"] = np.concatenate([part for values in known_values(case) for part in (values, [-1])])
    return arrays


def rows(ids, offsets, known=None):
    """The row of the tables for each id (M, F)."""
    if known is None:
        found = offsets[:-1] + (ids + 1) % (offsets[1:] - offsets[:-1])
    else:
        found = np.stack([_found(ids[:, f], known, *offsets[f : f + 2]) for f in range(len(offsets) - 1)], axis=1)
    return np.where((ids >= 0) & (ids <= LAST_ID), found, offsets[-1])


def _found(ids, known, begin, end):
    """The table rows of one feature's ids (M,): the first row that has the id's value, or else the last."""
    values, first = np.unique(known[begin : end - 1], return_index=True)
    if not len(values):
        return np.full(len(ids), end - 1)
    at = np.minimum(np.searchsorted(values, ids), len(values) - 1)
    return np.where(values[at] == ids, begin + first[at], end - 1)


def gradient(r, rows, count, dy):
    """(count, D): each table row the sum of dy (M, F, D) wherever rows() (M, F) says that it was looked up, 0 where nowhere. Point:
    `accumulated` of programs that add in the storage dtype."""

    def places():
        found = rows().reshape(-1)
        order = in_order(found)
        return order, np.searchsorted(found[order], np.arange(count + 1))

    order, starts = r.once(places)
    return r.segments("accumulated", dy.reshape(-1, dy.shape[-1])[order], starts)


def in_order(rows):
    """The places of the rows (L,) that sort them, those of one row as they come: a stable np.argsort takes five times as long."""
    return np.sort(rows * len(rows) + np.arange(len(rows))) % max(1, len(rows))
