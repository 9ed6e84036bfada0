"""geglu: Z = x @ W + b, y = z1 * GELU(z2), where z1 is the left half of Z's columns and z2 the right.

x (M, K), W (K, 2N) or (2N, K), b (2N,) → y (M, N), all of one dtype; sums in float32 at least.
"""

import math

import numpy as np

from implementations._shared.numpy.formulas import (
    PRODUCTS,
    activate,
    dot,
    layer_elements,
    linear,
    linear_gradients,
    product,
    pulled_back,
)
from implementations._shared.numpy.hard import of_products

DIMENSIONS = ("M", "K", "N")
BATCH = "M"
OPTIONS = {"activation": ("gelu_erf", "gelu_tanh"), "w_layout": ("kn", "nk")}
ROWS = {"x": 0, "y": 0}
CASES = {
    "small": {"M": 256, "K": 512, "N": 512},
    "batch": {"M": 1024, "K": 1024, "N": 4096},
    "large": {"M": 4096, "K": 4096, "N": 11008},  # a layer of a language model with 7 billion parameters
    "token": {"M": 1, "K": 1024, "N": 4096},
    "one": {"M": 1, "K": 1, "N": 1},
    "odd": {"M": 37, "K": 131, "N": 83},  # no tile divides it
    "tall": {"M": 300, "K": 17, "N": 3},  # the halves lie within one vector of a row of W
    "flat": {"M": 2, "K": 24, "N": 520},  # N divides into vectors, but into no tile
}

LAUNCHES = {"two_launches": 2}


def inputs(case, rng):
    """x (M, K): standard normal."""
    return {"x": rng.standard_normal(case.size("M", "K"), dtype=np.float32)}


def weights(case, rng):
    """W (K, 2N), or (2N, K) with w_layout=nk, scaled so that x @ W is near 1; b (2N,), not 0 and different in both halves."""
    K, N = case.size("K", "N")
    W = rng.standard_normal((K, 2 * N) if case.options["w_layout"] == "kn" else (2 * N, K), dtype=np.float32)
    W /= np.float32(math.sqrt(K))
    return {"W": W, "b": rng.standard_normal(2 * N, dtype=np.float32)}


def hard(case):
    """All kinds for x that products define."""
    return of_products(case, "x")


def formula(case, r, x, W, b):
    """(y,) in float64. Points: `product`, `bias`, `activation` for the steps of GELU, `gate` for its result."""
    return _gated(case, r, linear(case, x, W if case.options["w_layout"] == "kn" else W.T, b, r))


def without_bias(case, r, x, W, b):
    """The formula with b = 0."""
    return _gated(case, r, r.round("product", dot(case, r, x, W)))


def _gated(case, r, Z):
    z1, z2 = np.split(Z, 2, axis=1)
    return (r.compute(z1 * r.round("gate", activate(case.options["activation"], z2, r))),)


GRADIENTS = ("x", "W", "b")


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal(case.size("M", "N"), dtype=np.float32)}


def gradient(case, r, x, W, b, dy):
    """(dx, dW, db) in float64, with Z = x @ W + b and dZ = (dy * gelu(z2), dy * z1 * gelu'(z2)). Points: those of the formula, `weighted`,
    dy * z1, and `dz`."""
    z1, z2 = np.split(linear(case, x, W if case.options["w_layout"] == "kn" else W.T, b, r), 2, axis=1)
    dz1 = r.compute(dy * r.round("gate", activate(case.options["activation"], z2, r)))
    dz2 = pulled_back(case.options["activation"], z2, r.round("weighted", dy * z1), r)
    return linear_gradients(case, r, x, W, r.round("dz", np.concatenate([dz1, dz2], axis=1)))


PARTS = {"product": product, "without_bias": without_bias}  # what COMPUTES may name: judged by this, not by the formula


def flops(case):
    """2 M K (2N) of each product, one forward and two backward; the rest does not count."""
    M, K, N = case.size("M", "K", "N")
    return PRODUCTS[case.mode] * 4 * M * K * N


def moved_bytes(case):
    """x, W and b read once, y written once; backward each gradient as well (layer_elements)."""
    M, K, N = case.size("M", "K", "N")
    return layer_elements(case, M * K, 2 * K * N, 2 * N, M * N) * case.itemsize
