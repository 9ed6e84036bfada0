"""lora_mlp in Triton: for each layer a launch of the kernel `fused` of _shared/triton/lora.py, for triton.py and jax_triton.py. In the
backward modes the two launches of lora_backward.py for each layer, with tiles of their own choice."""

from implementations._shared.triton import lora, lora_backward
from implementations.lora_mlp import _layers

TUNABLES = {  # as lora_linear has them, of each layer
    "default": {
        "layer1_BLOCK_M": (16, 32, 64, 128), "layer1_BLOCK_N": (32, 64, 128, 256), "layer1_BLOCK_K": (16, 32, 64),
        "layer1_GROUP": (4, 8, 16), "layer1_num_warps": (4, 8), "layer1_num_stages": (2, 3, 4),
        "layer2_BLOCK_M": (16, 32, 64, 128), "layer2_BLOCK_N": (32, 64, 128, 256), "layer2_BLOCK_K": (16, 32, 64),
        "layer2_GROUP": (4, 8, 16), "layer2_num_warps": (4, 8), "layer2_num_stages": (2, 3, 4),
        "layer3_BLOCK_M": (16, 32, 64, 128), "layer3_BLOCK_N": (32, 64, 128, 256), "layer3_BLOCK_K": (16, 32, 64),
        "layer3_GROUP": (4, 8, 16), "layer3_num_warps": (4, 8), "layer3_num_stages": (2, 3, 4),
        "layer4_BLOCK_M": (16, 32, 64, 128), "layer4_BLOCK_N": (32, 64, 128, 256), "layer4_BLOCK_K": (16, 32, 64),
        "layer4_GROUP": (4, 8, 16), "layer4_num_warps": (4, 8), "layer4_num_stages": (2, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    return _layers.skip(lora, case, device)


def config(case, variant, device):
    return _layers.config(lora, case, device) if case.mode == "forward" else {}


def fits(case, variant, device, config):
    return _layers.fits(lora, case, device, config) if case.mode == "forward" else None


def launches(case, variant, device, config):
    """A launch for each layer. What a layer writes, the next one reads. Backward those of the layers from the last, in
    forward_backward behind two of each that leave what these read."""
    found, layers = [], _layers.layers(case)
    if case.mode != "forward":
        behind = [
            launch for layer in reversed(layers) for launch in lora_backward.launches(layer, own_config(layer, device))
        ]
        kept = [launch for layer in layers for launch in lora.kept_launches(layer, device)]
        return tuple(behind if case.mode == "backward" else [*kept, *behind])
    for number, layer in enumerate(layers, 1):
        found += lora.launches(layer, "fused", device, _layers.of_layer(number, config))
    return tuple(found)


def own_config(layer, device):
    """The config of a layer's backward pass."""
    return lora_backward.config(layer, device)


def differentiated(case, layer_calls):
    """(forward, backward) of the layers one behind the other, given those of each: (y, what it keeps) of x, scale and its arrays, and
    (dx, dW, db, dA, dB) of that and dy."""

    def forward(x, scale, *arrays):
        kept = []
        for (layer, _), of_layer in zip(layer_calls, _layers.by_layer(arrays), strict=True):
            x, residuals = layer(x, scale, *of_layer)
            kept += residuals
        return x, tuple(kept)

    def backward(kept, dy):
        gradients, of_layers, at = [], [], 0
        for layer in _layers.layers(case):
            count = 6 if layer.options["activation"] == "none" else 7  # x, scale, W, A, B, x @ A, and z
            of_layers.append(kept[at : at + count])
            at += count
        for (_, layer), residuals in reversed(list(zip(layer_calls, of_layers, strict=True))):
            dy, *of_layer = layer(residuals, dy)
            gradients = [*of_layer, *gradients]
        return dy, *gradients

    return forward, backward
