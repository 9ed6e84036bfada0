"""add_relu: y = relu(x + b), the bias added to every row.

x (M, N), b (N,) → y (M, N), all of one dtype. relu keeps NaN.

The sum of two numbers of the storage dtype, rounded once, has nothing left for relu to round: rounding and relu commute, so
a program that stores the sum before it takes relu computes the same bits as one that does not. Hence no points.
"""

import numpy as np

from implementations._shared.numpy.formulas import activate

DIMENSIONS = ("M", "N")
BATCH = "M"
PRECISIONS = ("ieee",)  # there is no matrix product
ROWS = {"x": 0, "y": 0}
CASES = {
    "small": {"M": 128, "N": 512},  # limited by the latency of one launch
    "large": {"M": 65536, "N": 4096},  # limited by memory
    "tiny": {"M": 8, "N": 10},  # rows that are no multiple of 16 bytes
    "one": {"M": 1, "N": 1},
    "odd": {"M": 37, "N": 203},  # no block divides it
    "tall": {"M": 5000, "N": 3},  # several rows in one vector of 16 bytes
    "wide": {"M": 3, "N": 5000},  # several blocks in one row
    "column": {"M": 4099, "N": 1},
}
PUBLISHED = ({"case": "small"}, {"case": "tiny"})


def inputs(case, rng):
    """x (M, N): standard normal."""
    return {"x": rng.standard_normal(case.size("M", "N"), dtype=np.float32)}


def weights(case, rng):
    """b (N,): standard normal, so that relu cuts about half of the sums."""
    return {"b": rng.standard_normal(case.sizes["N"], dtype=np.float32)}


def formula(case, r, x, b):
    """(y,) in float64."""
    return (activate("relu", r.compute(x + b), r),)


def flops(case):
    """An addition and a maximum for each element."""
    M, N = case.size("M", "N")
    return 2 * M * N


def moved_bytes(case):
    """x and b read once, y written once."""
    M, N = case.size("M", "N")
    return (2 * M * N + N) * case.itemsize
