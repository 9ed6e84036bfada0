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


GRADIENTS = ("x",)


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal(case.size("R", "C"), dtype=np.float32)}


def gradient(case, r, x, dy):
    """(dx,) in float64: y * dy - y * sum(y * dy). Points: those of the formula; `probabilities` of programs that keep y in the storage
    dtype, `weighted`, y * dy, `inner`, its sum, `partial` where it is added in the storage dtype, of terms that have been divided by a rounded
    square of the total as JAX has it, `share`, y times that, and `difference`, dy - sum, which y multiplies: as large a share of the result."""
    y = r.narrow("probabilities", softmax(x, np.ones(x.shape[-1], bool), r))
    weighted = r.round("weighted", dy * y)
    inner = r.round("inner", r.narrow("partial", r.sum(weighted, axis=-1, keepdims=True, point="partial")))
    return (r.compute(r.narrow("difference", weighted - r.round("share", y * inner))),)


# maximum, difference, exponential, sum, quotient; backward two products, a sum, a difference
FLOPS = {"forward": 5, "backward": 4, "forward_backward": 9}
# x read, y written; y (or x) and dy read, dx written; x and dy read, y and dx written
MOVED = {"forward": 2, "backward": 3, "forward_backward": 4}


def flops(case):
    """5 an element forward, 4 backward."""
    R, C = case.size("R", "C")
    return FLOPS[case.mode] * R * C


def moved_bytes(case):
    """Each array of the mode read or written once."""
    R, C = case.size("R", "C")
    return MOVED[case.mode] * R * C * case.itemsize
