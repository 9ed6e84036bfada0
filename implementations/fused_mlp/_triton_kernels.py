"""fused_mlp in Triton: what triton.py and jax_triton.py both launch, one kernel forward (_shared/triton/perceptron.py), in the backward
modes those of _triton_backward.py. Of `recompute` the forward pass is the one kernel there too, and backward makes the layers again."""

from dataclasses import replace

from implementations._shared.triton import perceptron
from implementations.fused_mlp import _triton_backward as backward

TUNABLES = {  # BLOCK3 is that of three layers and four
    "default": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_K": (16, 32, 64, 128, 256, 512), "BLOCK1": (16, 32, 64, 128),
        "BLOCK3": (16, 32, 64), "num_warps": (4, 8, 16), "num_stages": (1, 2, 3, 4),
    },
    ("default", "recompute"): {  # those of mode=backward
        "last_BLOCK": (256, 512, 1024, 2048), "last_num_warps": (1, 2, 4, 8),
        "layer1_DX_M": (16, 32, 64, 128), "layer1_DX_N": (16, 32, 64, 128), "layer1_DX_K": (16, 32, 64, 128),
        "layer1_DW_M": (16, 32, 64, 128), "layer1_DW_N": (16, 32, 64, 128, 256), "layer1_DW_K": (16, 32, 64),
        "layer1_SPLIT": (1, 2, 4, 8, 16, 32, 64), "layer1_num_warps": (4, 8), "layer1_num_stages": (2, 3, 4),
        "layer2_DX_M": (16, 32, 64, 128), "layer2_DX_N": (16, 32, 64, 128), "layer2_DX_K": (16, 32, 64, 128),
        "layer2_DW_M": (16, 32, 64, 128), "layer2_DW_N": (16, 32, 64, 128, 256), "layer2_DW_K": (16, 32, 64),
        "layer2_SPLIT": (1, 2, 4, 8, 16, 32, 64), "layer2_num_warps": (4, 8), "layer2_num_stages": (2, 3, 4),
        "layer3_DX_M": (16, 32, 64, 128), "layer3_DX_N": (16, 32, 64, 128), "layer3_DX_K": (16, 32, 64, 128),
        "layer3_DW_M": (16, 32, 64, 128), "layer3_DW_N": (16, 32, 64, 128, 256), "layer3_DW_K": (16, 32, 64),
        "layer3_SPLIT": (1, 2, 4, 8, 16, 32, 64), "layer3_num_warps": (4, 8), "layer3_num_stages": (2, 3, 4),
        "layer4_DX_M": (16, 32, 64, 128), "layer4_DX_N": (16, 32, 64, 128), "layer4_DX_K": (16, 32, 64, 128),
        "layer4_DW_M": (16, 32, 64, 128), "layer4_DW_N": (16, 32, 64, 128, 256), "layer4_DW_K": (16, 32, 64),
        "layer4_SPLIT": (1, 2, 4, 8, 16, 32, 64), "layer4_num_warps": (4, 8), "layer4_num_stages": (2, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None. Where layers are stored there is a launch for each, of any width."""
    if variant == "recompute" and case.mode == "forward":
        return "recompute is for backward modes: default is its forward pass"
    return perceptron.skip(case, variant, device) if case.mode == "forward" or variant == "recompute" else None


def config(case, variant, device):
    """The tunables."""
    return perceptron.config(case, variant, device) if case.mode == "forward" else backward.config(case, device)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    return (
        perceptron.fits(case, variant, device, config)
        if case.mode == "forward"
        else backward.fits(case, device, config)
    )


def launches(case, variant, device, config):
    """The one launch; in the backward modes those of _triton_backward.py."""
    if case.mode == "forward":
        return perceptron.launches(case, variant, device, config)
    behind, layers = backward.gradient_launches(case, config), backward.forward_launches(case, device)
    if variant == "recompute":
        behind, layers = (*layers, *behind), (alone(case, device),)
    return behind if case.mode == "backward" else (*layers, *behind)


def alone(case, device):
    """The one launch of mode=forward with a tile of its own, for backward modes that keep nothing."""
    forward = replace(case, mode="forward")
    (launch,) = perceptron.launches(forward, "default", device, perceptron.config(forward, "default", device))
    return launch
