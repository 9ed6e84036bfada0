"""padded_softmax: causal softmax of ready-scaled scores, of a sequence whose first n_padd tokens are padding.

att (T, T), n_padd () int32 → (T, T), of att's dtype; exponentials and sums in float32 at least. Token j is visible to token i
iff n_padd <= j <= i. Hidden positions are 0, and with them all of the rows i < n_padd, whatever att holds there, NaN
included. Among what a row sees a NaN, +inf, or nothing but -inf makes that NaN, as in Torch and JAX.

n_padd is on the device and may change from call to call. Beyond 0 … T it is an error, which the formula raises; programs do
not look, because the host would have to wait for the device: there less than 0 acts as 0, more than T as T.
"""

import numpy as np

from implementations._shared.numpy.edges import padded_at
from implementations._shared.numpy.formulas import softmax
from implementations._shared.numpy.padding import check, draw, positions

DIMENSIONS = ("T",)
BATCH = "T"
OPTIONS = {"padding": ("few", "none", "one", "most", "all")}
PRECISIONS = ("ieee",)  # nothing is multiplied in tensor cores
ROWS = {"att": 0, "y": 0}
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
PUBLISHED = ({"case": "published"},)


def inputs(case, rng):
    """att (T, T): normal, standard deviation 2, with NaN beside what each row sees; n_padd (): 4 to 8, or as the option says."""
    T = case.sizes["T"]
    att, n_padd = rng.standard_normal((T, T), dtype=np.float32), draw(case.options["padding"], T, rng)
    att *= 2
    att.reshape(-1)[1 :: T + 1] = np.nan  # the next token of each row but the last
    att[:, :n_padd:2] = np.nan
    return {"att": att, "n_padd": n_padd}


def edges(case, kind, rng):
    """The inputs with no padding, with nothing else, or with any."""
    return inputs(padded_at(case, kind), rng)


def formula(case, r, att, n_padd):
    """(y,) in float64. Points: `shifted`, `exponentials`, `total`, `inverse`."""
    T = case.sizes["T"]
    check(n_padd, T)
    i, j = r.rows(att.shape[0])[:, None], np.arange(T)
    return (softmax(att, (n_padd <= j) & (j <= i), r),)


def flops(case):
    """Maximum, difference, exponential, sum and quotient: 5 for each visible position."""
    return 5 * positions(case.options["padding"], case.sizes["T"])


def moved_bytes(case):
    """What is visible read once, n_padd too; all of y written once."""
    T = case.sizes["T"]
    return (positions(case.options["padding"], T) + T * T) * case.itemsize + 4
