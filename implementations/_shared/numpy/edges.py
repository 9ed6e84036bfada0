"""Integers at the `lower_edge` and the `upper_edge` of what they may be, `between`, and `repeated` (fusebench/hard.py), for kernel.py files."""

from dataclasses import replace

import numpy as np

from implementations._shared.numpy.lookup import LAST_ID, cardinalities, known_values


def padded_at(case, kind):
    """The case whose inputs have no padding, nothing else, or any, that beside whole tiles among it. None with NaN in what is seen, which
    may reach tokens before it, those of padding too."""
    padding = {"lower_edge": "none", "upper_edge": "all", "between": "tiles", "nan_column": "none"}[kind]
    return replace(case, options={**case.options, "padding": padding})


def ids_at(case, kind, rng, past=True):
    """ids (M, F), each value in as many samples as another. All ids of a sample have it; or, of values `past` what an id may be, one in a
    feature drawn at random, beside others of 0, so that it shows alone.

    V_f - 2 and V_f - 1 are hashed to the table's last and first row. -1 is what `known` has for unknown ids; ids of 32 bits make ids of
    the others past the edge, or negative ones, and id + 1 overflows 64 bits."""
    if kind == "between":
        return _all_over(case, rng)
    M, F = case.size("M", "F")
    if kind == "repeated":
        return np.repeat(_all_over(case, rng)[:1], M, axis=0)
    V = cardinalities(case)
    inside, outside = {
        "lower_edge": ((0, V - 1, np.maximum(V - 2, 0)), (-1, -(2**31), -(2**63))),
        "upper_edge": ((LAST_ID, 2**31 - 1, 2**31), (LAST_ID + 1, 2**33, 2**62, 2**63 - 1)),
    }[kind]
    values = np.stack([np.broadcast_to(value, F) for value in inside + (outside if past else ())])
    which = rng.permutation(np.resize(np.arange(len(values)), M))
    elsewhere = np.arange(F) != rng.integers(0, F, (M, 1))
    return np.where((which >= len(inside))[:, None] & elsewhere, 0, values[which])


def _all_over(case, rng):
    """ids (M, F) of any row of each table, in every other sample of the same one; with known values some are unknown: those beside a known
    one, and the known ones of the next feature, which stand behind them in memory."""
    M, F = case.size("M", "F")
    ids, looked_up = np.empty((M, F), np.int64), case.options["hashing"] == "lookup"
    known = known_values(case) if looked_up else [np.arange(V) for V in cardinalities(case)]
    for f, values in enumerate(known):
        drawn = rng.integers(0, max(1, len(values)), M)
        drawn[1::2] = drawn[0]
        ids[:, f] = values[drawn] if len(values) else 0
        if looked_up:
            behind = known[(f + 1) % F][:8]  # no further than a vector reads too far
            ids[2::8, f] = np.clip(ids[2::8, f] + rng.choice((-1, 1), len(ids[2::8])), 0, LAST_ID)
            ids[4::8, f] = rng.choice(behind, len(ids[4::8])) if len(behind) else LAST_ID
    return ids
