"""lora_linear: a linear layer with a low-rank adapter: y = act(x @ W + b + scale * (x @ A) @ B).

x (M, K), scale (), W (K, N) or (N, K), b (N,), A (K, R), B (R, N) → y (M, N), all of one dtype; sums in float32 at least.
scale is read at run time, from the device. W and scale * A @ B are not merged beforehand: with infinities in x that is another function.

Fused, x @ A is summed beside x @ W while x passes by, and meets B only at the end: the adapter costs no second pass over x
and no (M, N) intermediate, but each block of columns sums x @ A anew. `two_launches` sums it once, in a kernel of its own.
"""

import math

import numpy as np

from implementations._shared.numpy.formulas import (
    ACTIVATIONS,
    PRODUCTS,
    activate,
    adapted,
    adapted_gradients,
    layer_elements,
    product,
    pulled_back,
)
from implementations._shared.numpy.hard import of_products

DIMENSIONS = ("M", "K", "N", "R")
BATCH = "M"
OPTIONS = {"activation": ACTIVATIONS, "w_layout": ("kn", "nk")}
ROWS = {"x": 0, "y": 0}
CASES = {
    "batch": {"M": 1024, "K": 1024, "N": 1024, "R": 16},
    "rank8": {"M": 2048, "K": 4096, "N": 4096, "R": 8},
    "rank16": {"M": 2048, "K": 4096, "N": 4096, "R": 16},
    "rank64": {"M": 2048, "K": 4096, "N": 4096, "R": 64},
    "large": {"M": 8192, "K": 4096, "N": 16384, "R": 16},
    "token": {"M": 1, "K": 4096, "N": 4096, "R": 16},  # a stream over W
    "one": {"M": 1, "K": 1, "N": 1, "R": 1},
    "odd": {"M": 37, "K": 131, "N": 203, "R": 8},  # no tile divides it
    "tall": {"M": 301, "K": 17, "N": 5, "R": 16},  # N is less than any tile
    "flat": {"M": 3, "K": 70, "N": 515, "R": 64},  # more columns than a tile, fewer rows
    "odd_rank": {"M": 33, "K": 64, "N": 72, "R": 13},  # aligned but for A, whose rows are 13 long
}
LAUNCHES = {"two_launches": 2}


def inputs(case, rng):
    """x (M, K): standard normal; scale (): around 0.5, another at each call."""
    M, K = case.size("M", "K")
    return {"x": rng.standard_normal((M, K), dtype=np.float32), "scale": np.float32(rng.uniform(0.25, 0.75))}


def weights(case, rng):
    """W and A scaled so that their products are near 1, B so that the adapter's share is; b is not 0."""
    K, N, R = case.size("K", "N", "R")

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    return {
        "W": normal(*((K, N) if case.options["w_layout"] == "kn" else (N, K))) / np.float32(math.sqrt(K)),
        "b": normal(N),
        "A": normal(K, R) / np.float32(math.sqrt(K)),
        "B": normal(R, N) / np.float32(math.sqrt(R)),
    }


def hard(case):
    """The kinds for x that products define, and scales of any sign."""
    return of_products(case, "x") | {"zeros": ("x", "scale"), "scalar": ("scale",)}


def formula(case, r, x, scale, W, b, A, B):
    """(y,) in float64. Points: those of formulas.adapted and of the activation."""
    return (activate(case.options["activation"], adapted(case, r, x, scale, W, b, A, B)[0], r),)


GRADIENTS = ("x", "W", "b", "A", "B")


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal(case.size("M", "N"), dtype=np.float32)}


def gradient(case, r, x, scale, W, b, A, B, dy):
    """(dx, dW, db, dA, dB) in float64, of all weights. Points: those of the formula, `dz`, and those of formulas.adapted_gradients."""
    z, xa = adapted(case, r, x, scale, W, b, A, B)
    dz = r.round("dz", pulled_back(case.options["activation"], z, dy, r))
    return adapted_gradients(case, r, x, scale, W, A, B, xa, dz)


def x_product(case, r, x, scale, W, *_):
    """(x @ W,): the part that a library multiplies."""
    return product(case, r, x, W)


PARTS = {"product": x_product}  # what an implementation with this in COMPUTES is judged by, instead of the formula


def flops(case):
    """2 M K N of each product, 2 M R (K + N) of each pair of the adapter's; one forward, two backward."""
    M, K, N, R = case.size("M", "K", "N", "R")
    return PRODUCTS[case.mode] * 2 * M * (K * N + R * (K + N))


def moved_bytes(case):
    """x, scale, W, b, A and B read once, y written once; backward each gradient as well (layer_elements)."""
    M, K, N, R = case.size("M", "K", "N", "R")
    return (layer_elements(case, M * K, K * N + R * (K + N), N, M * N) + 1) * case.itemsize
