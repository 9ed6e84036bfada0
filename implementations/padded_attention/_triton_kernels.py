"""padded_attention in Triton: what triton.py and jax_triton.py both launch, and the choice of their tiles.

flash, whole_row    those of _shared/triton/attention.py.
one_launch          flash, with a backward pass of one launch instead of two (_triton_backward.py).
"""

from implementations._shared.triton import attention
from implementations.padded_attention import _triton_backward as backward

TUNABLES = {
    "flash": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3, 4),
        # those of the launches of mode=backward
        "queries_BLOCK_M": (16, 32, 64, 128), "queries_BLOCK_N": (16, 32, 64, 128), "queries_num_warps": (4, 8),
        "queries_num_stages": (1, 2, 3), "tokens_BLOCK_M": (16, 32, 64, 128), "tokens_BLOCK_N": (16, 32, 64, 128),
        "tokens_num_warps": (4, 8), "tokens_num_stages": (1, 2, 3),
    },
    "whole_row": {"BLOCK_M": (16, 32, 64), "N_OCOLS": (16, 32, 64, 128, 256), "num_warps": (4, 8, 16)},
    "one_launch": {"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)},
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if variant == "one_launch" and case.mode == "forward":
        return "one_launch is for backward modes: flash is its forward pass"
    return attention.skip(case, variant, device)


def config(case, variant, device):
    """The tunables of a variant; in the backward modes they are those of the backward launches."""
    return (attention if case.mode == "forward" else backward).config(case, variant, device)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    return (attention if case.mode == "forward" else backward).fits(case, variant, device, config)


def launches(case, variant, device, config):
    """The one launch of every variant, in mode=forward_backward that of flash and those of backward."""
    if case.mode == "forward":
        return attention.launches(case, variant, device, config)
    behind = backward.backward_launches(case, variant, config)
    return behind if case.mode == "backward" else (backward.forward_launch(case, device), *behind)
