"""lora_linear in Triton: what triton.py and jax_triton.py both launch, forward (_shared/triton/lora.py) and in the backward modes
(_shared/triton/lora_backward.py)."""

from implementations._shared.triton import lora
from implementations._shared.triton import lora_backward as backward
from implementations._shared.triton.lora import skip  # noqa: F401 (part of the contract)

TUNABLES = {
    "fused": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (16, 32, 64), "GROUP": (4, 8, 16),
        "num_warps": (4, 8), "num_stages": (2, 3, 4),
    },
    "two_launches": {
        "down_BLOCK_M": (16, 32, 64), "down_BLOCK_K": (32, 64, 128, 256), "down_num_warps": (2, 4, 8),
        "down_num_stages": (2, 3, 4),
        "up_BLOCK_M": (16, 32, 64, 128), "up_BLOCK_N": (32, 64, 128, 256), "up_BLOCK_K": (16, 32, 64),
        "up_GROUP": (4, 8, 16), "up_num_warps": (4, 8), "up_num_stages": (2, 3, 4),
        # those of mode=backward
        "low_BLOCK_M": (16, 32), "low_BLOCK_N": (32, 64, 128, 256, 512), "low_num_warps": (2, 4, 8), "low_num_stages": (2, 3, 4),
        "products_DX_M": (16, 32, 64, 128), "products_DX_N": (32, 64, 128, 256), "products_DX_K": (16, 32, 64, 128),
        "products_DW_M": (32, 64, 128), "products_DW_N": (32, 64, 128, 256), "products_DW_K": (16, 32, 64),
        "products_LOW": (32, 64, 128), "products_num_warps": (4, 8), "products_num_stages": (2, 3, 4),
        # of few rows
        "whole_DX_N": (32, 64, 128), "whole_DX_K": (16, 32, 64, 128), "whole_DW_M": (32, 64, 128),
        "whole_DW_N": (32, 64, 128, 256), "whole_LOW": (32, 64, 128), "whole_num_warps": (4, 8), "whole_num_stages": (2, 3, 4),
    },
}  # fmt: skip


def config(case, variant, device):
    """The tunables of a variant."""
    return lora.config(case, variant, device) if case.mode == "forward" else backward.config(case, device)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    return lora.fits(case, variant, device, config) if case.mode == "forward" else backward.fits(case, device, config)


def launches(case, variant, device, config):
    """The launches of the forward pass, in mode=backward those of lora_backward.py, in forward_backward both."""
    if case.mode == "forward":
        return lora.launches(case, variant, device, config)
    behind = backward.launches(case, config)
    return behind if case.mode == "backward" else (*lora.kept_launches(case, device), *behind)
