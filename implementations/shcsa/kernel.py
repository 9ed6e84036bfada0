"""shcsa: a single-head causal self-attention layer, of a sequence whose first n_padd tokens are padding.

x (T, C), W (C, 3 D) or (3 D, C), b (3 D,), n_padd () int32 → y (T, D): q, k, v = the three parts of x @ W + b, in this order,
then softmax(q kᵀ / √D) v, where token j is visible to token i iff n_padd <= j <= i. Rows i < n_padd of y are 0. All of one
dtype; sums, scores and exponentials in float32 at least. Padding of x, NaN or not, reaches nothing.

n_padd is on the device and may change from call to call. Beyond 0 … T it is an error, which the formula raises; programs do
not look, because the host would have to wait for the device: there less than 0 acts as 0, more than T as T.
"""

import math

import numpy as np

from implementations._shared.numpy.edges import padded_at
from implementations._shared.numpy.formulas import attention, linear
from implementations._shared.numpy.padding import PADDINGS, check, draw, positions, tokens

DIMENSIONS = ("T", "C", "D")
BATCH = "T"
OPTIONS = {"w_layout": ("kn", "nk"), "padding": PADDINGS}
CASES = {
    "published": {"T": 1024, "C": 768, "D": 64},  # one head of GPT-2
    "wide": {"T": 2048, "C": 4096, "D": 128},
    "wide_head": {"T": 512, "C": 1024, "D": 256},
    "one": {"T": 1, "C": 1, "D": 1},
    "short": {"T": 5, "C": 24, "D": 16},  # fewer tokens than padding may have
    "odd": {"T": 37, "C": 53, "D": 19},  # rows begin anywhere, not at a multiple of 16 bytes
    "past_block": {"T": 136, "C": 40, "D": 40},
}


def _launches_of_whole_rows(case):
    """Rows of x that are no whole vectors are copied first."""
    return 2 if case.sizes["C"] * case.itemsize % 16 == 0 else 3


LAUNCHES = {
    "padded_attention": 2,
    "whole_rows": _launches_of_whole_rows,
    "padded_softmax_v": 3,
    "padded_softmax": 4,
    "plain_softmax": 4,
}
PUBLISHED = ({"case": "published"},)


def inputs(case, rng):
    """x (T, C): normal, with NaN in every other token of padding; n_padd (): 4 to 8, or as the option says."""
    T, C = case.size("T", "C")
    n_padd = draw(case.options["padding"], T, rng)
    x = rng.standard_normal((T, C), dtype=np.float32)
    x[:n_padd:2] = np.nan
    return {"x": x, "n_padd": n_padd}


def weights(case, rng):
    """W (C, 3 D), or (3 D, C) with w_layout=nk, scaled so that q, k and v are near 1.5; b (3 D,), not 0."""
    C, D = case.size("C", "D")
    W = rng.standard_normal((C, 3 * D) if case.options["w_layout"] == "kn" else (3 * D, C), dtype=np.float32)
    return {"W": W * np.float32(1.5 / math.sqrt(C)), "b": 0.5 * rng.standard_normal(3 * D, dtype=np.float32)}


def edges(case, kind, rng):
    """The inputs with no padding, with nothing else, or with any."""
    return inputs(padded_at(case, kind), rng)


def hard(case):
    """Equal rows, and values that leave of q, k and v no more than b. Left out: NaN and infinities, because such a token's row of v is
    NaN, and a product with the zeros beside the diagonal carries that to tokens before it, in Torch and JAX; large means and
    extremes, whose scores the storage dtype cannot tell apart. The kernels of attention have such inputs of their own. `large` makes
    scores of millions, which float16 does not hold: there it is b's alone."""
    return dict.fromkeys(("equal", "subnormal", "small", "zeros"), ("x",)) | {
        "large": ("b",) if case.dtype == "float16" else ("x", "x")
    }


def formula(case, r, x, n_padd, W, b):
    """(y,) in float64. Points: `product`, `bias`, those of attention."""
    T, D = case.size("T", "D")
    check(n_padd, T)
    qkv = linear(case, x, W if case.options["w_layout"] == "kn" else W.T, b, r)
    return (attention(qkv[:, :D], qkv[:, D : 2 * D], qkv[:, 2 * D :], n_padd, np.arange(T), r),)


def flops(case):
    """2 T C 3 D of the Dense, and two products of D multiplications and additions for each visible position."""
    T, C, D = case.size("T", "C", "D")
    padding = case.options["padding"]
    return 6 * tokens(padding, T) * C * D + 4 * D * positions(padding, T)


def moved_bytes(case):
    """The tokens of x that are no padding, W, b and n_padd read once, all of y written once."""
    T, C, D = case.size("T", "C", "D")
    return (tokens(case.options["padding"], T) * C + (3 * C + 3) * D + T * D) * case.itemsize + 4
