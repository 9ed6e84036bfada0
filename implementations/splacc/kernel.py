"""splacc: C = A @ B, y = sigmoid(left half of C's columns) * tanh(right half).

A (M, K), B (K, 2N) or, column-major as published (w_layout=nk), (2N, K) → y (M, N), all of one dtype; sums in float32 at least.
"""

import math

import numpy as np

from implementations._shared.numpy.formulas import PRODUCTS, activate, dot, layer_elements, product
from implementations._shared.numpy.hard import of_products

DIMENSIONS = ("M", "K", "N")
BATCH = "M"
OPTIONS = {"w_layout": ("kn", "nk"), "scale": ("fan_in", "none")}
ROWS = {"A": 0, "y": 0}
CASES = {
    "small": {"M": 256, "K": 512, "N": 512},
    "batch": {"M": 1024, "K": 2048, "N": 2048},  # the published size
    "large": {"M": 8192, "K": 4096, "N": 8192},  # 1.1 TFLOP: limited by the power of the card
    "token": {"M": 1, "K": 2048, "N": 2048},
    "one": {"M": 1, "K": 1, "N": 1},
    "odd": {"M": 37, "K": 131, "N": 83},  # no tile divides it
    "tall": {"M": 300, "K": 17, "N": 3},  # the halves lie within one vector of a row of B
    "flat": {"M": 2, "K": 24, "N": 520},  # N divides into vectors, but into no tile
}
LAUNCHES = {"two_launches": 2}
PUBLISHED = (  # B column-major and unscaled: PyTorch's figure, and that of the interleaved kernel, in TF32, whose result was wrong
    {"case": "batch", "options": {"w_layout": "nk", "scale": "none"}, "figures": {"": {"torch_eager": 988.0}}},
    {
        "case": "batch", "precision": "tf32", "options": {"w_layout": "nk", "scale": "none"},
        "figures": {"": {"triton:interleaved": 329.0}},
    },
)  # fmt: skip


def inputs(case, rng):
    """A (M, K): standard normal."""
    return {"A": rng.standard_normal(case.size("M", "K"), dtype=np.float32)}


def weights(case, rng):
    """B (K, 2N), or (2N, K) with w_layout=nk, standard normal times 1/√K, so that A @ B is near 1: neither function is linear or
    constant there. With scale=none, as published, B is not scaled: A @ B is near √K, where both functions saturate."""
    K, N = case.size("K", "N")
    B = rng.standard_normal((K, 2 * N) if case.options["w_layout"] == "kn" else (2 * N, K), dtype=np.float32)
    if case.options["scale"] == "fan_in":
        B /= np.float32(math.sqrt(K))
    return {"B": B}


def hard(case):
    """All kinds for A that products define."""
    return of_products(case, "A")


def formula(case, r, A, B):
    """(y,) in float64. Points: `product`, `activation` for the steps of the sigmoid, `sigmoid` and `tanh` for the results."""
    left, right = np.split(r.round("product", dot(case, r, A, B)), 2, axis=1)
    gate = r.round("sigmoid", activate("sigmoid", left, r))
    return (r.compute(gate * r.round("tanh", activate("tanh", right, r))),)


GRADIENTS = ("A", "B")


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal(case.size("M", "N"), dtype=np.float32)}


def gradient(case, r, A, B, dy):
    """(dA, dB) in float64, with s the sigmoid and t the tanh: dz = (dy * t * s * (1 - s), dy * s * (1 - t²)). Points: those of the formula,
    `weighted` of dy * t and dy * s, `square` of t², `slope` for the other steps, and `dz`. A program may round these, and
    the sigmoid as one: in its own steps exp(16) overflows float16, so that it would be 0."""

    def step(value):
        return r.round("slope", value)

    left, right = np.split(r.round("product", dot(case, r, A, B)), 2, axis=1)
    s = r.round("sigmoid", activate("sigmoid", left, r))
    t = r.round("tanh", activate("tanh", right, r))
    dleft = step(r.round("weighted", dy * t) * s) * step(1 - s)
    behind = r.round("weighted", dy * s)
    dright = step(step(behind) * step(1 - r.round("square", t * t)))
    dz = r.round("dz", np.concatenate([dleft, dright], axis=1))
    turned = case.options["w_layout"] == "nk"
    return r.dot(dz, B if turned else B.T), r.dot(dz.T, A) if turned else r.dot(A.T, dz)


PARTS = {"product": product}  # what an implementation with this in COMPUTES is judged by, instead of the formula


def flops(case):
    """2 M K (2N) of each product, one forward and two backward; the rest does not count."""
    M, K, N = case.size("M", "K", "N")
    return PRODUCTS[case.mode] * 4 * M * K * N


def moved_bytes(case):
    """A and B read once, y written once; backward each gradient as well (layer_elements)."""
    M, K, N = case.size("M", "K", "N")
    return layer_elements(case, M * K, 2 * K * N, 0, M * N) * case.itemsize
