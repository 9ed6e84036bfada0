"""lora_mlp in Triton: the launches of _shared/triton/lora.py for each layer, for triton.py and jax_triton.py. In the
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
    "two_launches": {
        "layer1_down_BLOCK_M": (16, 32, 64), "layer1_down_BLOCK_K": (32, 64, 128, 256), "layer1_down_num_warps": (2, 4, 8),
        "layer1_down_num_stages": (2, 3, 4), "layer1_up_BLOCK_M": (16, 32, 64, 128), "layer1_up_BLOCK_N": (32, 64, 128, 256),
        "layer1_up_BLOCK_K": (16, 32, 64), "layer1_up_GROUP": (4, 8, 16), "layer1_up_num_warps": (4, 8), "layer1_up_num_stages": (2, 3, 4),
        "layer2_down_BLOCK_M": (16, 32, 64), "layer2_down_BLOCK_K": (32, 64, 128, 256), "layer2_down_num_warps": (2, 4, 8),
        "layer2_down_num_stages": (2, 3, 4), "layer2_up_BLOCK_M": (16, 32, 64, 128), "layer2_up_BLOCK_N": (32, 64, 128, 256),
        "layer2_up_BLOCK_K": (16, 32, 64), "layer2_up_GROUP": (4, 8, 16), "layer2_up_num_warps": (4, 8), "layer2_up_num_stages": (2, 3, 4),
        "layer3_down_BLOCK_M": (16, 32, 64), "layer3_down_BLOCK_K": (32, 64, 128, 256), "layer3_down_num_warps": (2, 4, 8),
        "layer3_down_num_stages": (2, 3, 4), "layer3_up_BLOCK_M": (16, 32, 64, 128), "layer3_up_BLOCK_N": (32, 64, 128, 256),
        "layer3_up_BLOCK_K": (16, 32, 64), "layer3_up_GROUP": (4, 8, 16), "layer3_up_num_warps": (4, 8), "layer3_up_num_stages": (2, 3, 4),
        "layer4_down_BLOCK_M": (16, 32, 64), "layer4_down_BLOCK_K": (32, 64, 128, 256), "layer4_down_num_warps": (2, 4, 8),
        "layer4_down_num_stages": (2, 3, 4), "layer4_up_BLOCK_M": (16, 32, 64, 128), "layer4_up_BLOCK_N": (32, 64, 128, 256),
        "layer4_up_BLOCK_K": (16, 32, 64), "layer4_up_GROUP": (4, 8, 16), "layer4_up_num_warps": (4, 8), "layer4_up_num_stages": (2, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    return _layers.skip(lora, case, variant, device)


def config(case, variant, device):
    return _layers.config(lora, case, variant, device) if case.mode == "forward" else {}


def fits(case, variant, device, config):
    return _layers.fits(lora, case, variant, device, config) if case.mode == "forward" else None


def launches(case, variant, device, config):
    """One launch for each layer, or two. What a layer writes, the next one reads. Backward those of the layers from the last, in
    forward_backward behind two of each that leave what these read."""
    found, layers = [], _layers.layers(case)
    if case.mode != "forward":
        behind = [
            launch for layer in reversed(layers) for launch in lora_backward.launches(layer, own_config(layer, device))
        ]
        kept = [launch for layer in layers for launch in lora.kept_launches(layer, device)]
        return tuple(behind if case.mode == "backward" else [*kept, *behind])
    for number, layer in enumerate(layers, 1):
        found += lora.launches(layer, _layers.OF_LORA[variant], device, _layers.of_layer(number, config))
    return tuple(found)


def own_config(layer, device):
    """The config of a layer's backward pass."""
    return lora_backward.config(layer, device)
