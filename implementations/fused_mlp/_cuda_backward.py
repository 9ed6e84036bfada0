"""fused_mlp's backward modes in CUDA C++: the launches of cuda_backward.cu behind those of cuda_layers.cu, and what each keeps for the other. Each layer
is one of layer_backward.py, which chooses the tiles.

Forward, a launch for each layer, because every hidden layer stays in memory. Rows of x, W and hidden layers that the products of the gradients
want filled up are copied before.
"""

import math
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

from implementations._shared.cuda import layer_backward, matmul, perceptron_layers
from implementations._shared.cuda.launch import TYPES, in_turn
from implementations._shared.cuda.perceptron import widths
from implementations.fused_mlp import _cuda_weights as weights

FILE = Path(__file__).with_name("cuda_backward.cu")
LAYERS_FILE = Path(__file__).with_name("cuda_layers.cu")


def layers(case):
    """The case of each layer, x (M, K) with W (K, N) or (N, K), and its activation."""
    nk, count, found = case.options["w_layout"] == "nk", case.sizes["LAYERS"], []
    for number, (K, N) in enumerate(pairwise(widths(case)), 1):
        own = matmul.product(case, case.sizes["M"], K, N, nk)
        activation = case.options["last"] if number == count else "relu"
        found.append(replace(own, options={**own.options, "activation": activation}))
    return found


# ---- forward --------------------------------------------------------------------------------------------------------------


def _forward(case, device):
    """For each layer (the copies of x and W as layer_backward.copies has them, the launch of the layer, of as many tensors as it reads)."""
    own = layers(case)
    copies = [layer_backward.copies(LAYERS_FILE, layer, device) for layer in own]
    found = []
    for i, layer in enumerate(own):
        behind = own[i + 1] if i + 1 < len(own) and copies[i + 1][1] is None else None  # whose W is there already
        found.append((*copies[i], _layer_launch(layer, behind, device)))
    in_order = iter(in_turn(*(launch for of_layer in found for launch in _launches_of(of_layer))))
    return [(*(c and (next(in_order), c[1]) for c in (of_x, of_W)), next(in_order)) for of_x, of_W, _ in found]


def _launches_of(of_layer):
    of_x, of_W, launch = of_layer
    return *(c[0] for c in (of_x, of_W) if c), launch


def _layer_launch(layer, behind, device):
    """The launch of a layer, which brings the weights of the one `behind` it, or None, to the L2 cache."""
    own = layer_backward.whole_rows(layer, device)
    # rows that are longer than what is in them are known to few kernels
    choose = perceptron_layers.layer_config if own is layer else layer_backward.linear_config
    activated = perceptron_layers.Layer(own, own.sizes["N"], layer.options["activation"].upper())
    size = math.prod(behind.size("K", "N")) * behind.itemsize if behind else 0
    bytes_of_next = size if size <= perceptron_layers.MOST_PREFETCHED else 0
    return perceptron_layers.layer_launch(LAYERS_FILE, activated, device, choose(layer, device), bytes_of_next)


def _forward_call(case, device):
    """A function of x, W1, b1, W2, b2, …, which returns y and, of each layer, x and W as the products of its gradients read them, behind which come
    the results that slopes are made of."""
    own, runs = layers(case), []
    for layer, (*copies, launch) in zip(own, _forward(case, device), strict=True):
        M, K, N = layer.size("M", "K", "N")
        run = launch.returning({3: (M, N)}, (M, K, N), absent=(4,) if layer is own[-1] else ())
        runs.append((*(c and c[0].returning({1: c[1]}, absent=(2,)) for c in copies), run))
    with_slope = len(own) - (case.options["last"] == "none")

    def forward(x, *arrays):
        kept, results = [], []
        for i, (copy_x, copy_W, run) in enumerate(runs):
            W, b, *behind = arrays[2 * i : 2 * i + 3]
            x, W = copy_x(x) if copy_x else x, copy_W(W) if copy_W else W
            kept += x, W
            x = run(x, W, b, *behind)
            results.append(x)
        return x, (*kept, *results[:with_slope])

    return forward


# ---- backward -------------------------------------------------------------------------------------------------------------


def _backward(case, device):
    """The launches of each layer, `pull_layer` and its products, from the last layer to the first; and behind them those of dW of narrow ones."""
    found, own = [], layers(case)
    narrow = _narrow(own, device)
    for i, layer in reversed(list(enumerate(own))):
        arguments, given = (TYPES[case.dtype], layer.options["activation"].upper()), (case.dtype, case.dtype)
        pull = layer_backward.pull_launch(FILE, layer, device, "pull_layer", arguments, given)
        config = layer_backward.config(layer, device)
        found.append((pull, *layer_backward.launches(FILE, layer, device, config, weighs=i not in narrow)))
    found.append(weights.launches(FILE, [own[i] for i in narrow], device))
    in_order = iter(in_turn(*chain.from_iterable(found)))
    *of_layers, of_narrow = [[next(in_order) for _ in launches] for launches in found]
    return of_layers, of_narrow


def _narrow(own, device):
    """The places of the layers whose dW has no launch of its own."""
    return [i for i, layer in enumerate(own) if weights.is_narrow(layer, device)]


def launches(case, device):
    """Those of the call, in the order in which they are launched."""
    of_layers, of_narrow = _backward(case, device)
    behind = (*chain.from_iterable(of_layers), *of_narrow)
    if case.mode == "backward":
        return behind
    return *chain.from_iterable(map(_launches_of, _forward(case, device))), *behind


def build(case, device):
    """(forward, backward) of x, W1, b1, W2, b2, …"""
    own, steps = layers(case), []
    of_layers, of_narrow = _backward(case, device)
    narrow = _narrow(own, device)
    for i, (first, *behind) in zip(range(len(own) - 1, -1, -1), of_layers, strict=True):
        pull = layer_backward.pulling(first, own[i], device, behind, rows=False, columns=True)
        products = layer_backward.gradients(own[i], device, behind, rows=False, columns=True, weighs=i not in narrow)
        steps.append((i, pull, products))
    weigh = weights.call(of_narrow, [own[i] for i in narrow], device) if narrow else None

    def backward(residuals, dy):
        kept, results = residuals[: 2 * len(own)], (*residuals[2 * len(own) :], dy)
        made, dzs = [None] * (2 * len(own)), {}
        for i, pull, products in steps:
            x, W = kept[2 * i : 2 * i + 2]
            dzs[i], row_parts, made[2 * i + 1], column_parts, flags = pull(results[i], dy)
            dy, made[2 * i] = products(dzs[i], W, x, None, row_parts, made[2 * i + 1], column_parts, flags)
        if narrow:
            for i, dW in zip(narrow, weigh([(kept[2 * i], dzs[i]) for i in narrow]), strict=True):
                made[2 * i] = dW
        return dy, *made

    return _forward_call(case, device), backward
