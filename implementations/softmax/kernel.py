"""softmax: y[i, j] = exp(x[i, j] - max(x[i])) / sum over k of exp(x[i, k] - max(x[i])), each row on its own.

x (R, C) → y (R, C), of one dtype; exponentials and sums in float32 at least. As in Torch and JAX a row of nothing but -inf,
or with a NaN or +inf, is NaN. R * C may pass 2³¹.
"""

import numpy as np

from implementations._shared.numpy.formulas import softmax

DIMENSIONS = ("R", "C")
BATCH = "R"
PRECISIONS = ("ieee",)  # nothing is multiplied in tensor cores
ROWS = {"x": 0, "y": 0}
CASES = {
    "published": {"R": 1823, "C": 781},
    "square": {"R": 4096, "C": 4096},
    "wide": {"R": 8192, "C": 32768},
    "vocabulary": {"R": 4096, "C": 131072},  # a row is more than one multiprocessor's shared memory
    "longest": {"R": 512, "C": 262144},
    "one": {"R": 1, "C": 1},
    "odd": {"R": 37, "C": 131},  # no row but the first starts at a multiple of 16 bytes
    "tall": {"R": 4099, "C": 3},  # many rows, shorter than a vector
    "row": {"R": 1, "C": 50257},  # one row, of GPT-2's vocabulary
    "long": {"R": 2, "C": 70001},  # longer than a block's registers hold
    "aligned": {"R": 5, "C": 4096},  # rows of whole vectors
}
PUBLISHED = ({"case": "published"},)


def inputs(case, rng):
    """x (R, C): normal, standard deviation 2. Of every 64 rows one has -inf in its second half, as a causal mask leaves it,
    one has it in its first half, where the running maximum of a single pass begins, and one is all -inf."""
    R, C = case.size("R", "C")
    x = rng.standard_normal((R, C), dtype=np.float32)
    x *= 2
    x[2::64, C // 2 :] = -np.inf
    x[3::64, : C // 2] = -np.inf
    x[4::64] = -np.inf
    return {"x": x}


def formula(case, r, x):
    """(y,) in float64. Points: `shifted`, `exponentials`, `total`, `inverse`."""
    return (softmax(x, np.ones(x.shape[-1], bool), r),)


def flops(case):
    """Maximum, difference, exponential, sum and quotient: 5 an element."""
    R, C = case.size("R", "C")
    return 5 * R * C


def moved_bytes(case):
    """x read once, y written once."""
    R, C = case.size("R", "C")
    return 2 * R * C * case.itemsize
