"""The formula of a multilayer perceptron and its gradients, in float64 NumPy, and its arrays, for kernel.py files.

`case` has the sizes M, LAYERS, N0 … N4 and the options `last` and `w_layout`: fused_mlp's own, or a part of a model's
(_shared/dlrm.py).
"""

import math
from itertools import pairwise

import numpy as np

from implementations._shared.numpy.formulas import PRODUCTS, activate, linear, linear_gradients, pulled_back


def widths(case):
    """(N0, N1, …) as far as the last layer. Raises ValueError for a number of layers that is not 1 to 4."""
    layers = case.sizes["LAYERS"]
    if layers > 4:
        raise ValueError(f"LAYERS is {layers}: expected 1 to 4")
    return case.size("N0", "N1", "N2", "N3", "N4")[: layers + 1]


def weights(case, rng):
    """W1, b1, W2, b2, …: W of each layer scaled so that ReLUs keep the size of what passes through (He), biases that are not 0."""
    sizes, arrays = widths(case), {}
    for i, (K, N) in enumerate(pairwise(sizes), 1):
        W = rng.standard_normal((K, N) if case.options["w_layout"] == "kn" else (N, K), dtype=np.float32)
        W *= np.float32(math.sqrt((1 if i == 1 else 2) / K))
        arrays[f"W{i}"] = W
        arrays[f"b{i}"] = np.float32(0.5) * rng.standard_normal(N, dtype=np.float32)
    return arrays


def sums(case, r, x, *layers):
    """(z of each layer, input of each layer), lists: z = h @ W + b before its activation. Points: `product` and `bias` of each layer as
    Torch's operators round them, `hidden` where a fused kernel stores what goes from one layer to the next."""
    below, found = [x], []
    for i in range(0, len(layers), 2):
        W, b = layers[i], layers[i + 1]
        found.append(linear(case, below[-1], W if case.options["w_layout"] == "kn" else W.T, b, r))
        if i + 2 < len(layers):
            below.append(r.round("hidden", r.relu(found[-1])))
    return found, below


def formula(case, r, x, *layers):
    """y with the activation `last`. Points: those of `sums`, and of the activation."""
    return activate(case.options["last"], sums(case, r, x, *layers)[0][-1], r)


def gradients(case, r, found, below, layers, dh):
    """(dx, dW1, db1, …) in float64, layer by layer from the last; `found` and `below` are from `sums`, dh the gradient behind the last
    activation. Points: `dz` and `dhidden`, the gradients before and after each product."""
    made = []
    for i in reversed(range(0, len(layers), 2)):
        name = case.options["last"] if i + 2 == len(layers) else "relu"
        dz = r.round("dz", pulled_back(name, found[i // 2], dh, r))
        dh, dW, db = linear_gradients(case, r, below[i // 2], layers[i], dz)
        dh = r.round("dhidden", dh) if i else dh
        made = [dW, db, *made]
    return dh, *made


def flops(case):
    """2 M K N of each layer's products, one forward and two backward."""
    sizes = widths(case)
    return PRODUCTS[case.mode] * 2 * case.sizes["M"] * sum(K * N for K, N in pairwise(sizes))


def elements(case):
    """(of all W, of all b)."""
    sizes = widths(case)
    return sum(K * N for K, N in pairwise(sizes)), sum(sizes[1:])
