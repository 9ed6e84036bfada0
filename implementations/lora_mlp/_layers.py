"""The layers of lora_mlp as the kernels of lora_linear take them, each a case of its own, for triton.py, jax_triton.py and cuda.py.

`lora` is the module that chooses a layer's tile: _shared/triton/lora.py or _shared/cuda/lora.py. The tunables of layer 2 begin
with layer2_.
"""

from dataclasses import replace
from itertools import pairwise

OF_A_LAYER = 4  # W, b, A, B
OF_LORA = {"default": "fused", "two_launches": "two_launches"}  # variant → that of lora_linear which each layer is


def widths(case):
    """(N0, N1, …) as far as the last layer."""
    return case.size("N0", "N1", "N2", "N3", "N4")[: case.sizes["LAYERS"] + 1]


def layers(case):
    """A case with the sizes M, K, N and R and the options activation and w_layout for each layer."""
    M, R = case.size("M", "R")
    found = []
    for number, (K, N) in enumerate(pairwise(widths(case)), 1):
        activation = case.options["last"] if number == case.sizes["LAYERS"] else "relu"
        options = {"activation": activation, "w_layout": case.options["w_layout"]}
        found.append(replace(case, kernel="lora_linear", sizes={"M": M, "K": K, "N": N, "R": R}, options=options))
    return found


def skip(lora, case, variant, device):
    """Why a layer cannot run, or None."""
    if variant == "two_launches" and case.mode != "forward":
        return "is for mode=forward, behind which default has launches of both kinds"
    return next(filter(None, (lora.skip(layer, OF_LORA[variant], device) for layer in layers(case))), None)


def config(lora, case, variant, device):
    """The tunables of all layers."""
    own = [lora.config(layer, OF_LORA[variant], device) for layer in layers(case)]
    return {f"layer{i}_{name}": value for i, of in enumerate(own, 1) for name, value in of.items()}


def of_layer(number, config):
    """The tunables of one layer, without its number."""
    prefix = f"layer{number}_"
    return {name.removeprefix(prefix): value for name, value in config.items() if name.startswith(prefix)}


def fits(lora, case, variant, device, config):
    """Why the config of a layer cannot run, or None."""
    for number, layer in enumerate(layers(case), 1):
        if reason := lora.fits(layer, OF_LORA[variant], device, of_layer(number, config)):
            return f"layer{number}: {reason}"
    return None


def by_launches(variant, launches):
    """Those of each layer, from all of a call."""
    count = 2 if variant == "two_launches" else 1
    return [launches[i : i + count] for i in range(0, len(launches), count)]


def by_layer(arrays):
    """(W, b, A, B) of each layer, from the arguments of a call behind x and scale."""
    return [arrays[i : i + OF_A_LAYER] for i in range(0, len(arrays), OF_A_LAYER)]


def differentiated(case, layer_calls):
    """(forward, backward) of the layers one behind the other, given those of each: (y, what it keeps) of x, scale and its arrays, and
    (dx, dW, db, dA, dB) of that and dy."""

    def forward(x, scale, *arrays):
        kept = []
        for (layer, _), of_layer in zip(layer_calls, by_layer(arrays), strict=True):
            x, residuals = layer(x, scale, *of_layer)
            kept += residuals
        return x, tuple(kept)

    def backward(kept, dy):
        gradients, of_layers, at = [], [], 0
        for layer in layers(case):
            count = 6 if layer.options["activation"] == "none" else 7  # x, scale, W, A, B, x @ A, and z
            of_layers.append(kept[at : at + count])
            at += count
        for (_, layer), residuals in reversed(list(zip(layer_calls, of_layers, strict=True))):
            dy, *of_layer = layer(residuals, dy)
            gradients = [*of_layer, *gradients]
        return dy, *gradients

    return forward, backward
