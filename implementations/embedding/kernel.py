"""embedding: F hashed look-ups, then a gather from each feature's table: y[m, f] = table_f[row of ids[m, f]].

ids (M, F) int64, tables (sum V_f + 1, D), offsets (F + 1,) int64, known (sum V_f,) int64 → y (M, F, D), of the tables' dtype.
The last row of the tables is no feature's: it is for ids out of range, and NaN.

Tables. Every feature has its own number of rows V_f, so the tables stand below one another in one array: feature f has the
rows offsets[f] … offsets[f + 1] - 1, and offsets[F] = sum V_f. V is the largest V_f; the others follow from it (`cardinalities`).

Hashing, an option:
  modulus   row (id + 1) mod V_f of the feature's table; no uniform hash (docs/kernels.md)
  lookup    the position of the id among the feature's known values, the first of duplicates; an unknown id has the table's
            last row. `known` gives each row the value that it stands for, and -1, which is no id, for that last row: a
            feature with L_f known values has V_f = L_f + 1 rows.

Ids are 0 … 2³² - 1; any other is an error. A check that raised would have to wait for the device in every call. Instead the
array of tables has one row beyond all tables, row offsets[F], which is NaN: such an id gets it in every implementation, so that
the error shows in the output, costs no synchronisation, and never indexes past a table.
"""

import numpy as np

from implementations._shared.numpy import lookup
from implementations._shared.numpy.edges import ids_at
from implementations._shared.numpy.lookup import cardinalities, draw, known_values, rows, weights  # noqa: F401 (`weights` is the contract's)

DIMENSIONS = ("M", "F", "V", "D")
BATCH = "M"
OPTIONS = {"hashing": ("modulus", "lookup")}
PRECISIONS = ("ieee",)  # nothing is multiplied
ROWS = {"ids": 0, "y": 0}
CASES = {
    "small": {"M": 128, "F": 26, "V": 20_000, "D": 16},  # DLRM's batch; the default on any machine
    "main": {"M": 2048, "F": 26, "V": 100_000, "D": 16},
    "large": {"M": 65536, "F": 26, "V": 1_000_000, "D": 16},  # tables of 155 MB in float32, three times an H200's L2
    "large_wide": {"M": 65536, "F": 26, "V": 100_000, "D": 128},
    "one": {"M": 1, "F": 1, "V": 1, "D": 1},  # no known value at all
    "odd": {"M": 37, "F": 5, "V": 211, "D": 13},  # rows that are no multiple of any vector
    "long_rows": {"M": 5, "F": 3, "V": 67, "D": 1031},  # a row is longer than a block
    "many_features": {"M": 3, "F": 37, "V": 9, "D": 6},
    "tall": {"M": 1500, "F": 2, "V": 3, "D": 8},
}
LAUNCHES = {"naive": 2}  # the list of known values is copied first, as published
PUBLISHED = ({"case": "small"}, {"case": "small", "options": {"hashing": "lookup"}})


def inputs(case, rng):
    """ids (M, F): long-tailed over the known values, some unknown, some at the edges of 32 bits (`draw`)."""
    return {"ids": draw(case, rng)}


def formula(case, r, ids, tables, offsets, known=None):
    """(y,) in float64. A copy rounds nowhere."""
    return (tables[r.once(lambda: rows(ids, offsets, known))],)


GRADIENTS = ("tables",)


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal(case.size("M", "F", "D"), dtype=np.float32)}


def gradient(case, r, ids, tables, offsets, *known_and_dy):
    """(dtables,) in float64: each row the sum of dy wherever its row was looked up, 0 where nowhere. Point: `accumulated` of programs that
    add in the storage dtype."""
    *known, dy = known_and_dy
    return (lookup.gradient(r, lambda: rows(ids, offsets, *known), len(tables), dy),)


def edges(case, kind, rng):
    """ids at an edge of what they may be and beyond it, or all over the tables (`ids_at`)."""
    return {"ids": ids_at(case, kind, rng)}


def shape_problem(case, shapes):
    """What of offsets, tables and known does not go together, or "": only offsets, on the device, have the V_f."""
    F, V = case.size("F", "V")
    rows = shapes["tables"][0] - 1
    if shapes["offsets"] != (F + 1,):
        return f"offsets has the shape {shapes['offsets']}; expected (F + 1) with F={F}"
    if not V + F - 1 <= rows <= V * F:  # V is the largest V_f, and none is 0
        expected = f"{V + F} to {V * F + 1} with F={F}, V={V}: those of all features and one more, for ids out of range"
        return f"tables has {rows + 1} rows; expected {expected}"
    if shapes.get("known", (rows,)) != (rows,):
        return f"known has the shape {shapes['known']}; expected ({rows},), as tables has {rows + 1} rows"
    return ""


def hard(case):
    """All kinds, as rows are copied, whatever is in them; `large` is no other than `extreme`."""
    return dict.fromkeys(("large_mean", "equal", "subnormal", "nan", "inf", "extreme"), ("tables",)) | {"repeated": ()}


def flops(case):
    """None: hashing is integer arithmetic, and the additions of a gradient are as many as ids repeat."""
    return 0


def moved_bytes(case):
    """ids read and y written once. The rows that are read are at most as many bytes as y, but ids repeat, and how often is a
    matter of the data: they do not count. Backward ids and dy read, and all of dtables written, most of it zeros; both: y as well."""
    M, F, D = case.size("M", "F", "D")
    looked_up, tables = M * F * D, (int(cardinalities(case).sum()) + 1) * D
    moved = {"forward": looked_up, "backward": looked_up + tables, "forward_backward": 2 * looked_up + tables}[
        case.mode
    ]
    return M * F * 8 + moved * case.itemsize
