"""lola: Layer nOrm, Linear, Activation: y = act(LN(x) @ W + b), where LN has no scale and no shift.

x (M, K), W (K, N) or (N, K), b (N,) → y (M, N), all of one dtype; statistics and sums in float32 at least.

The identity that lets one pass over x and W do it, with s any shift of the row (0, or close to its mean):

    LN(x) @ W = ((x - s) @ W - (mean(x) - s) * colsum(W)) / sqrt(var(x) + eps)

The bias is added after the division. A variance from mean(x²) - mean(x)² can come out negative and must be clamped.
"""

import math

import numpy as np

from implementations._shared.numpy.formulas import (
    PRODUCTS,
    activate,
    layer_elements,
    linear,
    linear_gradients,
    product,
    pulled_back,
)
from implementations._shared.numpy.hard import of_products

DIMENSIONS = ("M", "K", "N")
BATCH = "M"
EPS = 1e-5
OPTIONS = {"activation": ("gelu_tanh", "gelu_erf", "relu", "none"), "w_layout": ("kn", "nk")}
ROWS = {"x": 0, "y": 0}
CASES = {
    "batch": {"M": 1024, "K": 1024, "N": 4096},
    "token": {"M": 1, "K": 1024, "N": 4096},
    "wide_token": {"M": 1, "K": 8192, "N": 32768},  # the weights are 20 times an H200's L2
    "large": {"M": 8192, "K": 4096, "N": 16384},  # 1.1 TFLOP: limited by the power of the card
    "odd": {"M": 37, "K": 131, "N": 203},  # no tile divides it
    "odd_token": {"M": 1, "K": 131, "N": 203},
    "one": {"M": 1, "K": 1, "N": 1},
    "token_2048": {"M": 1, "K": 2048, "N": 8192},
}
LAUNCHES = {"two_launches": 2}
# Loops are unsynchronised, without a wait for the GPU between the clock's readings. jax-triton's was un-jitted.
PUBLISHED = (
    {
        "case": "token", "device": "A100-class",
        "figures": {
            "unsynchronised loop": {
                "flax:module": 50.4, "flax:pieces": 53.4, "torch_eager": 73.9, "triton:row": 29.7, "jax_triton:unjitted": 195.0,
            },
        },
    },
    {"case": "token_2048", "figures": {"": {"": 70.2}}},
    {
        "case": "wide_token", "device": "A100-class",
        "figures": {
            "unsynchronised loop": {"flax:module": 1450.0, "flax:pieces": 1420.0, "triton:row": 733.0},
            "do_bench": {"triton:row": 810.0},
        },
    },
    # The batched Triton kernels sum in float16. The float32 of Flax is TF32: its printed difference is that of TF32 operands
    {
        "case": "batch", "device": "A100-class",
        "figures": {"unsynchronised loop": {"torch_eager": 668.0}, "": {"triton:multirow_f16acc": 495.0}},
    },
    {
        "case": "batch", "precision": "tf32", "device": "A100-class",
        "figures": {"unsynchronised loop": {"flax:module": 502.0, "flax:pieces": 318.0}},
    },
    {
        "case": "batch", "dtype": "float16", "device": "A100-class",
        "figures": {
            "unsynchronised loop": {"torch_eager": 122.0},
            "do_bench": {"triton:multirow_f16acc": 199.0, "triton:multirow_ws_f16acc": 132.0},
        },
    },
    {
        "case": "batch", "dtype": "bfloat16", "device": "A100-class",
        "figures": {"unsynchronised loop": {"flax:module": 298.0}},
    },
    {
        "case": "batch", "dtype": "bfloat16", "options": {"w_layout": "nk"}, "device": "A100-class",
        "figures": {"unsynchronised loop": {"flax:transposed": 267.0}},
    },
)  # fmt: skip


def inputs(case, rng):
    """x (M, K): standard normal rows around 0.5, so that the mean matters."""
    M, K = case.size("M", "K")
    x = rng.standard_normal((M, K), dtype=np.float32)
    x += np.float32(0.5)
    return {"x": x}


def weights(case, rng):
    """W (K, N), or (N, K) with w_layout=nk, scaled so that LN(x) @ W is near 1; b (N,), not 0: its place in the formula shows."""
    K, N = case.size("K", "N")
    W = rng.standard_normal((K, N) if case.options["w_layout"] == "kn" else (N, K), dtype=np.float32)
    W /= np.float32(math.sqrt(K))
    return {"W": W, "b": rng.standard_normal(N, dtype=np.float32)}


def hard(case):
    """The kinds for x that products define: float32 has no room for the squares of others, and the normed rows that dW shows are, of
    subnormals, what each way of taking a mean has rounded last. `large` of W and b: of x LayerNorm would take it away."""
    return of_products(case, "x") | {"large": ("W", "b"), "equal_large": ("x",)}


def formula(case, r, x, W, b):
    """(y,) in float64. Points: `layernorm`, `product`, `bias`, `output`; `one_pass` where the identity above is used, `half_sums`
    where its product is summed in float16, `fast_variance` where the variance is mean(x²) - mean(x)²."""
    W = W if case.options["w_layout"] == "kn" else W.T
    _, deviation, rstd = _shifted(case, r, x)
    normed = r.round("layernorm", deviation * rstd)

    def after(product):
        product = r.one_pass("one_pass", product, x, W, rstd)
        # 16 bits hold no shifted row: there the product takes x itself
        return r.half_sums(product, deviation if case.dtype == "float32" else x, W, rstd)

    z = linear(case, normed, W, b, r, after)
    return (r.round("output", activate(case.options["activation"], z, r)),)


def _shifted(case, r, x):
    """The means of the rows of x, x less these, and 1 / their deviations."""
    K = case.sizes["K"]
    mean = r.compute(r.sum(x, axis=1, keepdims=True) / K)
    deviation = r.compute(x - mean)
    variance = r.fast_variance(r.sum(deviation**2, axis=1, keepdims=True) / K, x, mean)
    return mean, deviation, r.function(1 / np.sqrt(variance + EPS))


GRADIENTS = ("x", "W", "b")


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal(case.size("M", "N"), dtype=np.float32)}


def gradient(case, r, x, W, b, dy):
    """(dx, dW, db) in float64, with n = LN(x), z = n @ W + b, dz = dy * act'(z) and dn = dz @ Wᵀ:

        dx = (dn - mean(dn) - n * mean(dn * n)) / sqrt(var(x) + eps)        dW = nᵀ @ dz        db = sum of dz over the rows

    Points: those of the formula but `half_sums`, `dz`, `dn`, `moments` where mean and deviation are kept in the storage dtype for dx, as Torch does
    on a CPU, and `normed` where dx is taken from n as it was stored."""
    K, transposed = case.sizes["K"], case.options["w_layout"] == "nk"
    mean, deviation, rstd = _shifted(case, r, x)
    kept = r.narrow("moments", rstd)
    hat = r.narrow("normed", r.compute(r.compute(x - r.narrow("moments", mean)) * kept))
    normed = r.round("layernorm", deviation * rstd)
    upright = W.T if transposed else W
    z = linear(case, normed, upright, b, r, lambda product: r.one_pass("one_pass", product, x, upright, rstd))
    dz = r.round("dz", pulled_back(case.options["activation"], z, dy, r))
    dn, dW, db = linear_gradients(case, r, normed, W, dz)
    dn = r.round("dn", dn)
    # the sums of dn and of dn * n are dz . colsum(W) and dz . (z - b) as well, which programs take without a pass over dn: of few columns,
    # where nearly all of dn is in them, what either lost is most of what is left
    level = r.either(_sums(r, dn), _sums(r, r.compute(dz * r.sum(upright, axis=0))))
    along = r.either(_sums(r, r.compute(dn * hat)), _sums(r, r.compute(dz * r.compute(z - b))))
    level, along = r.compute(level / K), r.compute(along / K)
    return r.compute(kept * r.compute(dn - level - r.compute(hat * along))), dW, db


def _sums(r, a):
    """Those of the rows."""
    return r.sum(a, axis=1, keepdims=True)


PARTS = {"product": product}  # what an implementation with this in COMPUTES is judged by, instead of the formula


def flops(case):
    """2 M K N of each product: of one forward, of dz @ Wᵀ and nᵀ @ dz backward; the rest is below a percent of it and does not count."""
    M, K, N = case.size("M", "K", "N")
    return PRODUCTS[case.mode] * 2 * M * K * N


def moved_bytes(case):
    """x, W and b read once, y written once; backward each gradient as well (layer_elements)."""
    M, K, N = case.size("M", "K", "N")
    return layer_elements(case, M * K, K * N, N, M * N) * case.itemsize
