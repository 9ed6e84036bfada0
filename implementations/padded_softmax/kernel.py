"""padded_softmax: causal softmax of ready-scaled scores, of a sequence whose first n_padd tokens are padding.

att (T, T), n_padd () int32 → (T, T), of att's dtype; exponentials and sums in float32 at least. Token j is visible to token i
iff n_padd <= j <= i. Hidden positions are 0, and with them all of the rows i < n_padd, whatever att holds there, NaN
included. Among what a row sees a NaN, +inf, or nothing but -inf makes that NaN, as in Torch and JAX.

n_padd is on the device and may change from call to call. Beyond 0 … T it is an error, which the formula raises; programs do
not look, because the host would have to wait for the device: there less than 0 acts as 0, more than T as T.
"""

import numpy as np

from implementations._mathematics import softmax

DIMENSIONS = ("T",)
BATCH = "T"
OPTIONS = {"padding": ("few", "none", "one", "most", "all")}
PRECISIONS = ("ieee",)  # nothing is multiplied in tensor cores
ROWS = ("att",)
CASES = {
    "published": {"T": 1024},
    "large": {"T": 8192},
    "longest": {"T": 32768},
    "one": {"T": 1},
    "two": {"T": 2},
    "short": {"T": 5},  # fewer tokens than padding may have
    "odd": {"T": 131},  # no row but the first starts at a multiple of 16 bytes
    "block": {"T": 256},
    "past_block": {"T": 257},
}


def padding(case):
    """The least and the most padding that `inputs` draws."""
    T = case.sizes["T"]
    least, most = {"few": (4, 8), "none": (0, 0), "one": (1, 1), "most": (T - 1, T - 1), "all": (T, T)}[
        case.options["padding"]
    ]
    return min(least, T), min(most, T)


def inputs(case, rng):
    """att (T, T): normal, standard deviation 2, with NaN beside what each row sees; n_padd (): 4 to 8, or as the option says."""
    T = case.sizes["T"]
    least, most = padding(case)
    att, n_padd = 2 * rng.standard_normal((T, T), dtype=np.float32), rng.integers(least, most, endpoint=True)
    att.reshape(-1)[1 :: T + 1] = np.nan  # the next token of each row but the last
    att[:, :n_padd:2] = np.nan
    return {"att": att, "n_padd": np.asarray(n_padd, np.int32)}


def formula(case, r, att, n_padd):
    """(y,) in float64. Points: `shifted`, `exponentials`, `total`, `inverse`."""
    T = case.sizes["T"]
    if not 0 <= n_padd <= T:
        raise ValueError(f"n_padd is {n_padd}: expected 0 to T = {T}")
    i, j = r.rows(att.shape[0])[:, None], np.arange(T)
    return (softmax(att, (n_padd <= j) & (j <= i), r),)


def visible(case):
    """How many positions are visible, with the most padding that may be drawn."""
    seen = case.sizes["T"] - padding(case)[1]
    return seen * (seen + 1) // 2


def flops(case):
    """Maximum, difference, exponential, sum and quotient: 5 for each visible position."""
    return 5 * visible(case)


def moved_bytes(case):
    """What is visible read once, n_padd too; all of y written once."""
    T = case.sizes["T"]
    return (visible(case) + T * T) * case.itemsize + 4
