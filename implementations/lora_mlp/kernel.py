"""lora_mlp: a multilayer perceptron whose linear layers carry low-rank adapters: LAYERS layers
h @ W + b + scale * (h @ A) @ B with a ReLU between them, and a last activation.

x (M, N0), scale (), W1 (N0, N1), b1 (N1,), A1 (N0, R), B1 (R, N1), W2 (N1, N2) … → y (M, N of the last layer), all of one dtype;
sums in float32 at least. With w_layout=nk each W is stored (N, K). scale is read at run time, from the device, and is that of
all adapters.

The number of layers is a size, LAYERS from 1 to 4, as in fused_mlp; widths past the last layer's mean nothing (the cases say 1)
and no array has them. What is fused are the layers: each is one launch of lora_linear's kernel, and what a layer makes passes
through memory.
"""

import math
from itertools import pairwise

import numpy as np

from implementations._shared.numpy.formulas import (
    PRODUCTS,
    activate,
    adapted,
    adapted_gradients,
    layer_elements,
    pulled_back,
)
from implementations._shared.numpy.hard import of_products

DIMENSIONS = ("M", "LAYERS", "N0", "N1", "N2", "N3", "N4", "R")
BATCH = "M"
OPTIONS = {"last": ("none", "relu", "sigmoid"), "w_layout": ("kn", "nk")}
ROWS = {"x": 0, "y": 0}
OF_A_LAYER = 4  # W, b, A, B


def _sizes(M, R, *widths):
    """The sizes of a case from its rows, the rank, and the widths from its input to its output."""
    padded = (*widths, 1, 1, 1, 1)[:5]
    return {"M": M, "LAYERS": len(widths) - 1} | {f"N{i}": n for i, n in enumerate(padded)} | {"R": R}


CASES = {
    "synthetic": _sizes(128, 16, 512, 512, 256, 1),  # fused_mlp's, with adapters
    "synthetic_2048": _sizes(2048, 16, 512, 512, 256, 1),
    "synthetic_65536": _sizes(65536, 16, 512, 512, 256, 1),
    "bottom": _sizes(128, 8, 13, 512, 256, 64, 16),
    "block": _sizes(2048, 16, 1024, 4096, 1024),  # of a transformer, where adapters come from
    "block_64": _sizes(2048, 64, 1024, 4096, 1024),
    "large": _sizes(8192, 16, 4096, 16384, 4096),
    "deep": _sizes(8192, 16, 2048, 2048, 2048, 2048, 2048),
    "small": _sizes(128, 8, 64, 128, 32),
    "one": _sizes(1, 1, 1, 1, 1, 1),
    "odd": _sizes(37, 8, 13, 131, 67, 5),  # no tile divides it
    "odd_rank": _sizes(33, 13, 64, 72, 24),  # aligned but for A, whose rows are 13 long
    "one_layer": _sizes(5, 3, 70, 41),
    "widening": _sizes(33, 20, 5, 7, 150),  # a rank larger than the widths
    "four_layers": _sizes(19, 4, 40, 33, 72, 9, 21),
}
LAUNCHES = {"default": "LAYERS", "two_launches": lambda case: 2 * case.sizes["LAYERS"]}


def widths(case):
    """(N0, N1, …) as far as the last layer. Raises ValueError for a number of layers that is not 1 to 4."""
    layers = case.sizes["LAYERS"]
    if layers > 4:
        raise ValueError(f"LAYERS is {layers}: expected 1 to 4")
    return case.size("N0", "N1", "N2", "N3", "N4")[: layers + 1]


def inputs(case, rng):
    """x (M, N0): standard normal; scale (): around 0.5, another at each call."""
    x = rng.standard_normal(case.size("M", "N0"), dtype=np.float32)
    return {"x": x, "scale": np.float32(rng.uniform(0.25, 0.75))}


def weights(case, rng):
    """W and A of each layer scaled so that ReLUs keep the size of what passes through (He), B so that the adapter's share is as
    large as that of W, and biases that are not 0."""
    R, arrays = case.sizes["R"], {}

    def normal(*shape, scale):
        array = rng.standard_normal(shape, dtype=np.float32)
        array *= np.float32(scale)
        return array

    for i, (K, N) in enumerate(pairwise(widths(case)), 1):
        he = math.sqrt((1 if i == 1 else 2) / K)
        arrays[f"W{i}"] = normal(*((K, N) if case.options["w_layout"] == "kn" else (N, K)), scale=he)
        arrays[f"b{i}"] = normal(N, scale=0.5)
        arrays[f"A{i}"] = normal(K, R, scale=he)
        arrays[f"B{i}"] = normal(R, N, scale=1 / math.sqrt(R))
    return arrays


def hard(case):
    """The kinds for x that products define whose results may be stored, and scales of any sign."""
    return of_products(case, "x", stored=True) | {"zeros": ("x", "scale"), "scalar": ("scale",)}


def _sums(case, r, x, scale, *arrays):
    """(each layer's input, its sums, its x @ A, its arrays), by layer. Points: those of formulas.adapted, and `hidden` where a kernel
    stores what goes from one layer to the next."""
    found, h = [], x
    for i in range(0, len(arrays), OF_A_LAYER):
        own = arrays[i : i + OF_A_LAYER]
        z, xa = adapted(case, r, h, scale, *own)
        found.append((h, z, xa, own))
        h = r.round("hidden", r.relu(z)) if i + OF_A_LAYER < len(arrays) else None
    return found


def formula(case, r, x, scale, *arrays):
    """(y,) in float64. Points: those of `_sums` and of the last activation."""
    return (activate(case.options["last"], _sums(case, r, x, scale, *arrays)[-1][1], r),)


GRADIENTS = (
    "x",
    *(f"{name}{layer}" for layer in (1, 2, 3, 4) for name in ("W", "b", "A", "B")),
)  # of as many layers as the case has


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal((case.sizes["M"], widths(case)[-1]), dtype=np.float32)}


def gradient(case, r, x, scale, *arrays_and_dy):
    """(dx, dW1, db1, dA1, dB1, …) in float64, layer by layer from the last. Points: those of the formula, `dz` and `dhidden`, the
    gradients before and after each layer, and those of formulas.adapted_gradients."""
    *arrays, dh = arrays_and_dy
    gradients, name = [], case.options["last"]
    layers = _sums(case, r, x, scale, *arrays)
    for i, (h, z, xa, (W, _, A, B)) in reversed(list(enumerate(layers))):
        dz = r.round("dz", pulled_back(name, z, dh, r))
        dh, *own = adapted_gradients(case, r, h, scale, W, A, B, xa, dz)
        dh, name = r.round("dhidden", dh) if i else dh, "relu"
        gradients = [*own, *gradients]
    return dh, *gradients


def _elements(case):
    """Of all W, A and B, and of all b."""
    R, sizes = case.sizes["R"], widths(case)
    return sum(K * N + R * (K + N) for K, N in pairwise(sizes)), sum(sizes[1:])


def flops(case):
    """2 M K N of each layer's product, 2 M R (K + N) of each pair of its adapter's; one forward, two backward."""
    return PRODUCTS[case.mode] * 2 * case.sizes["M"] * _elements(case)[0]


def moved_bytes(case):
    """x, scale, weights and biases read once, y written once; backward each gradient as well (layer_elements)."""
    M, sizes = case.sizes["M"], widths(case)
    return (layer_elements(case, M * sizes[0], *_elements(case), M * sizes[-1]) + 1) * case.itemsize
