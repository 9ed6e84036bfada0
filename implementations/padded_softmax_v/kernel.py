"""padded_softmax_v: causal softmax of ready-scaled scores, of a sequence whose first n_padd tokens are padding, times v.

att (T, T), v (T, D), n_padd () int32 → y (T, D); exponentials and sums in float32 at least. Token j is visible to token i iff
n_padd <= j <= i. Rows i < n_padd of y are 0. What is hidden of att, and rows of v that are padding, reach nothing, NaN or not.
A NaN in a row of v that is visible to some token may also reach tokens before it, as it does where the product with v is one
with zeros beside the diagonal, in Torch and JAX.

n_padd is on the device and may change from call to call. Beyond 0 … T it is an error, which the formula raises; programs do
not look, because the host would have to wait for the device: there less than 0 acts as 0, more than T as T.
"""

import numpy as np

from implementations._shared.numpy.edges import padded_at
from implementations._shared.numpy.formulas import softmax
from implementations._shared.numpy.padding import PADDINGS, check, draw, positions, tokens

DIMENSIONS = ("T", "D")
BATCH = "T"
OPTIONS = {"padding": PADDINGS}
ROWS = {"att": 0, "y": 0}
CASES = {
    "published": {"T": 1024, "D": 64},
    "large": {"T": 8192, "D": 64},
    "wide": {"T": 8192, "D": 128},
    "longest": {"T": 32768, "D": 128},
    "one": {"T": 1, "D": 1},
    "short": {"T": 5, "D": 16},  # fewer tokens than padding may have
    "odd": {"T": 131, "D": 19},  # rows begin anywhere, not at a multiple of 16 bytes
    "odd_rows": {"T": 67, "D": 32},  # those of att alone
    "past_block": {"T": 264, "D": 40},
}
PUBLISHED = ({"case": "published"},)


def inputs(case, rng):
    """att (T, T): normal, standard deviation 2, with NaN beside what each row sees; v (T, D): normal, with NaN in every other
    token of padding; n_padd (): 4 to 8, or as the option says."""
    T, D = case.size("T", "D")
    n_padd = draw(case.options["padding"], T, rng)
    att, v = rng.standard_normal((T, T), dtype=np.float32), rng.standard_normal((T, D), dtype=np.float32)
    att *= 2
    att.reshape(-1)[1 :: T + 1] = np.nan  # the next token of each row but the last
    att[:, :n_padd:2] = np.nan
    v[:n_padd:2] = np.nan
    return {"att": att, "v": v, "n_padd": n_padd}


def edges(case, kind, rng):
    """The inputs with no padding, with nothing else, or with any."""
    return inputs(padded_at(case, kind), rng)


def hard(case):
    """Means, subnormals and extremes in one of the two alone; a NaN or an infinity in att makes the row that sees it NaN, and
    -inf is no weight. Left out: NaN in some rows of v (the docstring above says why), infinities in v, and sums beyond float32.
    `large` makes scores of millions, which leave a row one weight: of hundreds float32 has lost more than the formula allows for, where
    they meet log2(e) before their maximum is taken off. In float16, which would not hold them, hundreds."""
    kinds = {"large_mean": ("v",), "equal": ("att", "v"), "subnormal": ("att",), "nan": ("att",), "inf": ("att",)}
    kinds |= {"negative": ("att",), "nan_column": ("v",)}
    kinds |= {"small": ("att", "v"), "zeros": ("att", "v"), "wide": ("v",)}
    kinds["large"] = ("att",) if case.dtype == "float16" else ("att",) * 4
    return kinds | ({"extreme": ("v",)} if case.dtype == "float16" else {})


def formula(case, r, att, v, n_padd):
    """(y,) in float64. Points: those of softmax, `probabilities`."""
    T = case.sizes["T"]
    check(n_padd, T)
    i, j = r.rows(att.shape[0])[:, None], np.arange(T)
    probabilities = r.round("probabilities", softmax(att, (n_padd <= j) & (j <= i), r))
    return (r.dot(probabilities, np.where((n_padd <= j)[:, None], v, 0.0)),)


def flops(case):
    """A multiplication and an addition for each visible position and column of v; the exponentials do not count."""
    T, D = case.size("T", "D")
    return 2 * D * positions(case.options["padding"], T)


def moved_bytes(case):
    """What is visible of att and v read once, n_padd too; all of y written once."""
    T, D = case.size("T", "D")
    padding = case.options["padding"]
    return (positions(padding, T) + (tokens(padding, T) + T) * D) * case.itemsize + 4
