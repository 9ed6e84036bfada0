"""lora_mlp in Triton: for each layer a launch of the kernel `fused` of _shared/triton/lora.py, for triton.py and jax_triton.py."""

from implementations._shared.triton import lora
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
    return _layers.config(lora, case, device)


def fits(case, variant, device, config):
    return _layers.fits(lora, case, device, config)


def launches(case, variant, device, config):
    """A launch for each layer. What a layer writes, the next one reads."""
    found = []
    for number, layer in enumerate(_layers.layers(case), 1):
        found += lora.launches(layer, "fused", device, _layers.of_layer(number, config))
    return tuple(found)
