"""padded_attention: causal attention of sequences whose first n_padd tokens are padding, y = softmax(q kᵀ / √D) v.

q, k, v (B, H, T, D), n_padd (B,) int32 → y like q; scores, exponentials and sums in float32 at least. B = H = 1 is the form
(T, D), n_padd (): the same memory, so it has no layout of its own.

Token j is visible to token i iff n_padd <= j <= i. Rows i < n_padd of y are 0, whatever q, k and v hold there: NaN in padding
reaches nothing, although 0 × NaN is NaN. A NaN that is visible to some token may also reach tokens before it, as it does
where a product with the rows of v is one with zeros beside the diagonal, in Torch and JAX.

n_padd is on the device and may change from call to call. Beyond 0 … T it is an error, which the formula raises; programs do
not look, because the host would have to wait for the device: there less than 0 acts as 0, more than T as T.
"""

import numpy as np

from implementations._shared.numpy.edges import padded_at
from implementations._shared.numpy.formulas import PRODUCTS, attention, attention_gradients
from implementations._shared.numpy.padding import PADDINGS, check, draw, positions, tokens

DIMENSIONS = ("B", "H", "T", "D")
BATCH = "B"
OPTIONS = {"padding": PADDINGS}
ROWS = {"q": -2, "y": -2}
SLICES = 1  # heads
CASES = {
    "published": {"B": 1, "H": 1, "T": 1024, "D": 64},  # one head of GPT-2
    "gpt2": {"B": 1, "H": 12, "T": 1024, "D": 64},
    "batch": {"B": 8, "H": 16, "T": 4096, "D": 64},
    "wide": {"B": 4, "H": 16, "T": 4096, "D": 128},
    "wide_heads": {"B": 1, "H": 16, "T": 2048, "D": 256},
    "long": {"B": 1, "H": 8, "T": 16384, "D": 64},
    "one": {"B": 1, "H": 1, "T": 1, "D": 1},
    "short": {"B": 3, "H": 1, "T": 5, "D": 16},  # fewer tokens than padding may have
    "odd": {"B": 2, "H": 3, "T": 37, "D": 19},  # rows begin anywhere, not at a multiple of 16 bytes
    "heads": {"B": 2, "H": 5, "T": 64, "D": 24},  # one tile each; D is no power of two
    "block": {"B": 1, "H": 2, "T": 128, "D": 16},
    "past_block": {"B": 1, "H": 1, "T": 137, "D": 80},
}
PUBLISHED = ({"case": "published"},)


def _and_a_copy(case):
    """Rows of 16 bits that are no whole vectors may be copied first."""
    return 2 if case.itemsize == 2 and case.sizes["D"] % 8 else 1


LAUNCHES = {"flash": (1, _and_a_copy)}


def inputs(case, rng):
    """q, k, v (B, H, T, D): normal, with NaN in every other token of padding; n_padd (B,): 4 to 8, or as the option says.

    q is 1.5 times normal, so that the weights of a row differ by more than a little.
    """
    B, H, T, D = case.size("B", "H", "T", "D")
    n_padd = draw(case.options["padding"], T, rng, (B,))
    q, k, v = (rng.standard_normal((B, H, T, D), dtype=np.float32) for _ in range(3))
    q *= np.float32(1.5)
    for b in range(B):
        for array in (q, k, v):
            array[b, :, : n_padd[b] : 2] = np.nan
    return {"q": q, "k": k, "v": v, "n_padd": n_padd}


def edges(case, kind, rng):
    """The inputs with no padding, with nothing else, or with any."""
    return inputs(padded_at(case, kind), rng)


def hard(case):
    """Means and extremes in v alone, whose sums are weighted with 1 in all; a NaN in q, which makes its own row NaN.

    k is not made equal along with q: their products would be sums of D equal terms, which err as no random order does.
    Left out: NaN in k and in some rows of v (the docstring above says why), infinities (libraries take a row whose scores are all -inf for
    one that sees nothing), and scores or sums beyond float32. `large` makes scores below a mask of -1e4; in float16, which would
    not hold them, hundreds. Not of float32's and bfloat16's gradients, some of which are subnormal then: XLA flushes them on CPUs.
    `negative` has these nearer to 0, because float32 keeps of scores of 2²⁷ what is left of the logarithm of their sum to 8 at best.
    """
    kinds = {"large_mean": ("v",), "equal": ("q", "v"), "nan": ("q",), "wide": ("v",)}
    kinds |= dict.fromkeys(("small", "zeros"), ("q", "k", "v")) | {"nan_column": ("v",)}
    if case.dtype == "float16":
        kinds["large"] = ("q",)
    elif case.mode == "forward":
        kinds["large"] = ("q", "q", "k")
    near = case.mode != "forward" and case.dtype != "float16"
    kinds["negative"] = ("q", "q", "q", "k") if near else ("q", "q", "k")
    if case.mode == "forward":
        kinds["subnormal"] = ("q", "k")  # dq and dk are then of their size, and so is what is lost
    return kinds | ({"extreme": ("v",)} if case.dtype == "float16" else {})


def formula(case, r, q, k, v, n_padd):
    """(y,) in float64. Points: `query`, `scores`, `scaled`, those of softmax, `probabilities`."""
    check(n_padd, case.sizes["T"])
    return (attention(q, k, v, n_padd.reshape(-1, 1, 1, 1), r.rows(q.shape[-2]), r),)


GRADIENTS = ("q", "k", "v")


def upstream(case, rng):
    """y's, standard normal, in tokens of padding too: they reach nothing."""
    return {"y": rng.standard_normal(case.size("B", "H", "T", "D"), dtype=np.float32)}


def gradient(case, r, q, k, v, n_padd, dy):
    """(dq, dk, dv) in float64, 0 for tokens of padding. Points: those of the formula, and of attention_gradients."""
    check(n_padd, case.sizes["T"])
    return attention_gradients(q, k, v, n_padd.reshape(-1, 1, 1, 1), dy, r)


def flops(case):
    """Two products of D multiplications and additions for each visible position, and four backward, of which none is made again; the
    exponentials do not count."""
    B, H, T, D = case.size("B", "H", "T", "D")
    return PRODUCTS[case.mode] * 4 * D * B * H * positions(case.options["padding"], T)


def moved_bytes(case):
    """The tokens of q, k and v that are no padding read once, n_padd too; all of y written once. Backward those of q, k, v and dy read, and
    all of dq, dk and dv written; both: all of them."""
    B, H, T, D = case.size("B", "H", "T", "D")
    read, written = {"forward": (3, 1), "backward": (4, 3), "forward_backward": (4, 4)}[case.mode]
    return (read * tokens(case.options["padding"], T) + written * T) * B * H * D * case.itemsize + 4 * B
