"""fused_mlp: a whole multilayer perceptron: LAYERS linear layers with a ReLU between them, and a last activation.

x (M, N0), W1 (N0, N1), b1 (N1,), W2 (N1, N2), b2 (N2,) … → y (M, N of the last layer), all of one dtype; sums in float32
at least. With w_layout=nk each W is stored (N, K).

The number of layers is a size, LAYERS from 1 to 4, so that a named case has all that it needs; widths past the last layer's
mean nothing (the cases say 1) and no array has them.

Can it be one launch? Layer 2 needs the whole rows of layer 1, but no others: so a tile of rows goes through all layers and
never leaves the chip, while every tile reads all weights anew, from L2. Wide layers are better off with a launch each.
"""

import numpy as np

from implementations._shared.numpy import perceptron
from implementations._shared.numpy.formulas import dot, layer_elements
from implementations._shared.numpy.hard import of_products
from implementations._shared.numpy.perceptron import flops, weights, widths  # noqa: F401 (parts of the contract)

DIMENSIONS = ("M", "LAYERS", "N0", "N1", "N2", "N3", "N4")
BATCH = "M"
OPTIONS = {"last": ("none", "relu", "sigmoid"), "w_layout": ("kn", "nk")}
ROWS = {"x": 0, "y": 0}


def _sizes(M, *widths):
    """The sizes of a case from its rows and the widths from its input to its output."""
    padded = (*widths, 1, 1, 1, 1)[:5]
    return {"M": M, "LAYERS": len(widths) - 1} | {f"N{i}": n for i, n in enumerate(padded)}


CASES = {
    "bottom": _sizes(128, 13, 512, 256, 64, 16),  # DLRM's dense features
    "bottom_2048": _sizes(2048, 13, 512, 256, 64, 16),
    "bottom_65536": _sizes(65536, 13, 512, 256, 64, 16),
    "top": _sizes(128, 367, 512, 256, 1),  # DLRM's prediction from dot interactions
    "top_outer": _sizes(128, 186624, 512, 256, 1),  # the same from outer products: a stream over W1
    "synthetic": _sizes(128, 512, 512, 256, 1),
    "synthetic_2048": _sizes(2048, 512, 512, 256, 1),
    "synthetic_65536": _sizes(65536, 512, 512, 256, 1),
    "one": _sizes(1, 1, 1, 1, 1, 1),
    "odd": _sizes(37, 13, 131, 67, 5),  # no tile divides it
    "one_layer": _sizes(5, 70, 41),
    "two_layers": _sizes(3, 17, 130, 3),
    "widening": _sizes(33, 5, 7, 150),  # the last layer is the widest
    "four_layers": _sizes(19, 40, 33, 72, 9, 21),
    "bottom_small": _sizes(128, 13, 32, 16),  # of DLRM with one hidden layer
    "top_small": _sizes(128, 186624, 16, 1),
    "wide": _sizes(2048, 1024, 1024, 1024),
}
PUBLISHED = (
    *({"case": case} for case in ("bottom", "bottom_2048", "bottom_65536", "bottom_small")),
    *({"case": case, "options": {"last": "sigmoid"}} for case in ("top", "top_outer", "top_small")),
    *({"case": case, "options": {"last": "relu"}} for case in ("synthetic", "synthetic_2048", "synthetic_65536")),
)


def _and_a_copy(case):
    """Rows of x that are no whole vectors may be copied first."""
    return case.sizes["LAYERS"] + 1


LAUNCHES = {"default": (1, 2, "LAYERS", _and_a_copy)}


def inputs(case, rng):
    """x (M, N0): standard normal."""
    return {"x": rng.standard_normal(case.size("M", "N0"), dtype=np.float32)}


def hard(case):
    """The kinds for x that products define whose results may be stored."""
    return of_products(case, "x", stored=True)


def formula(case, r, x, *layers):
    """(y,) in float64. Points: `product` and `bias` of each layer as Torch's operators round them, `hidden` where a fused
    kernel stores what goes from one layer to the next."""
    return (perceptron.formula(case, r, x, *layers),)


GRADIENTS = ("x", "W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4")  # of as many layers as the case has


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal((case.sizes["M"], widths(case)[-1]), dtype=np.float32)}


def gradient(case, r, x, *layers_and_dy):
    """(dx, dW1, db1, …) in float64, layer by layer from the last. Points: those of the formula, `dz` and `dhidden`, the gradients
    before and after each product."""
    *layers, dy = layers_and_dy
    return perceptron.gradients(case, r, *perceptron.sums(case, r, x, *layers), layers, dy)


def products(case, r, x, *layers):
    """(x @ W1 @ W2 …,): the part that a library multiplies, each product stored."""
    h = x
    for i in range(0, len(layers), 2):
        product = dot(case, r, h, layers[i])
        h = r.round("hidden", product) if i + 2 < len(layers) else product
    return (r.compute(h),)


PARTS = {"products": products}  # what an implementation with this in COMPUTES is judged by, instead of the formula


def moved_bytes(case):
    """x, weights and biases read once, y written once; backward each gradient as well (layer_elements)."""
    M, sizes = case.sizes["M"], widths(case)
    return layer_elements(case, M * sizes[0], *perceptron.elements(case), M * sizes[-1]) * case.itemsize
