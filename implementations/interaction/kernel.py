"""interaction: DLRM's feature interaction of one dense vector and F sparse ones for each sample.

dense (M, D), sparse (M, F, D) → y, of one dtype, in one of two forms:

  dot     the vectors x_0 = dense, x_1 … x_F = sparse; y (M, D + F (F + 1) / 2) is dense, then the products x_i · x_j with
          j < i, row by row: (1,0), (2,0), (2,1), (3,0), … Sums in float32 at least.
  outer   x = dense and all sparse vectors side by side, N = (F + 1) D values; y (M, N²), y[i N + j] = x[i] x[j].
"""

import numpy as np

from implementations._shared.numpy import interactions

DIMENSIONS = ("M", "F", "D")
BATCH = "M"
OPTIONS = {"form": ("dot", "outer")}
ROWS = {"dense": 0, "sparse": 0, "y": 0}
CASES = {
    "main": {"M": 128, "F": 26, "D": 16},  # 26 is the number of Criteo's categorical columns
    "batch": {"M": 2048, "F": 26, "D": 16},
    "large": {"M": 65536, "F": 26, "D": 128},  # dot only: outer would write 1.6 TB even in 16 bits
    "one": {"M": 1, "F": 1, "D": 1},
    "odd": {"M": 37, "F": 5, "D": 7},
    "odd_main": {"M": 13, "F": 26, "D": 9},  # as many vectors as DLRM, rows that are no multiple of a vector
    "many_features": {"M": 2, "F": 67, "D": 5},  # more vectors than one tile has
    "long_rows": {"M": 3, "F": 2, "D": 133},
    "edge": {"M": 9, "F": 31, "D": 8},  # exactly 32 vectors, and one sample more than a block of eight
}
PUBLISHED = ({"case": "main"}, {"case": "main", "options": {"form": "outer"}})


def inputs(case, rng):
    """dense (M, D), sparse (M, F, D): standard normal."""
    M, F, D = case.size("M", "F", "D")
    return {
        "dense": rng.standard_normal((M, D), dtype=np.float32),
        "sparse": rng.standard_normal((M, F, D), dtype=np.float32),
    }


def hard(case):
    """All kinds but `extreme`: products of the largest numbers overflow, and a sum of infinities of both signs is infinite or
    NaN by the order in which it was taken."""
    return dict.fromkeys(
        ("large_mean", "equal", "subnormal", "nan", "inf", "large", "small", "zeros", "wide"), ("dense", "sparse")
    )


def formula(case, r, dense, sparse):
    """(y,) in float64. A single product is rounded once, in the output."""
    return (interactions.formula(case.options["form"], r, dense, sparse),)


GRADIENTS = ("dense", "sparse")


def upstream(case, rng):
    """y's, standard normal."""
    M, F, D = case.size("M", "F", "D")
    return {"y": rng.standard_normal((M, interactions.columns(case.options["form"], F, D)), dtype=np.float32)}


def gradient(case, r, dense, sparse, dy):
    """(ddense, dsparse) in float64. dot: with dP the gradients of the products in the lower triangle, (dP + dPᵀ) @ stack, and dense's own
    columns; outer: the same of one vector. Points: `left` and `right`, the two products, and `stack`, their sum; `terms` of outer's, which
    no library multiplies as matrices."""
    return interactions.gradient(case.options["form"], r, dense, sparse, dy)


def flops(case):
    """Only the products that are asked for, forward, and twice as many backward: dot 2 D of each of the F (F + 1) / 2 pairs, outer one of each output."""
    forward = interactions.flops(case.options["form"], *case.size("M", "F", "D"))
    return {"forward": 1, "backward": 2, "forward_backward": 3}[case.mode] * forward


def moved_bytes(case):
    """dense and sparse read once, y written once; backward dense, sparse and dy read, their gradients written; both: all of them."""
    M, F, D = case.size("M", "F", "D")
    N, written = (F + 1) * D, interactions.columns(case.options["form"], F, D)
    each = {"forward": N + written, "backward": 2 * N + written, "forward_backward": 2 * N + 2 * written}[case.mode]
    return M * each * case.itemsize
