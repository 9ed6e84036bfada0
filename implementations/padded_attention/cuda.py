"""padded_attention in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

flash: blocks of tokens with a running maximum, which the blocks of a cluster share where there are few rows (9.0 and later); a launch before it copies rows of
16 bits that are no whole vectors. whole_row: all scores of 16 rows in shared memory, for short sequences.
The backward modes are flash's: two launches, or three (_cuda_backward.py).
"""

import math
from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import attention
from implementations._shared.cuda.launch import Launch, instance
from implementations._shared.gpu import is_ieee
from implementations.padded_attention import _cuda_backward as backward
from implementations.padded_attention import _cuda_flash as flash

BACKEND = "torch"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
BACKWARD = {"flash": ("probabilities", "dscaled", "output")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("flash", "whole_row"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "flash", "case": ("wide", "batch", "gpt2", "published"), "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0,beside.MUFU.EX2>=64,loop.R2UR=0"},
    {"variant": "flash", "case": "wide_heads", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0,beside.MUFU.EX2>=32,loop.R2UR=0"},
    {"variant": "flash", "case": ("published", "wide"), "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    # products of one kind are one group: each its own where the compiler serialises them. R2UR: a descriptor that it takes for a lane's own
    {"variant": "flash", "case": ("batch", "gpt2"), "dtype": "bfloat16", "mode": "backward", "arch": "sm_90a",
     "expect": "spills=0,waits_in_groups=0,loop.WARPGROUP.ARRIVE=7,beside.MUFU.EX2>=96,loop.R2UR=0"},
    {"variant": "flash", "case": "wide", "dtype": "bfloat16", "mode": "backward", "arch": "sm_90a",
     "expect": "spills=0,waits_in_groups=0,loop.WARPGROUP.ARRIVE=7,beside.MUFU.EX2>=64,loop.R2UR=0"},
)  # fmt: skip
TUNABLES = {
    "flash": {
        "KERNEL": ("tensor", "warpgroup", "simt"), "BLOCK_M": (16, 32, 64, 128, 192), "BLOCK_N": (16, 32, 64, 128, 256),
        "WARPS_M": (1, 2, 4, 8, 12), "WARPS_N": (1, 2, 4, 8), "num_stages": (2, 3, 4), "SPLIT": (1, 2, 4, 8),
        # those of the launches of mode=backward
        "queries_KERNEL": ("tensor", "warpgroup", "simt"), "tokens_KERNEL": ("tensor", "warpgroup", "simt"),
        "queries_BLOCK_M": (16, 32, 64, 128), "queries_BLOCK_N": (16, 32, 64, 128),
        "tokens_BLOCK_M": (16, 32, 64, 128), "tokens_BLOCK_N": (16, 32, 64),
    },
    "whole_row": {"BLOCK_N": (64, 128, 256), "WARPS_N": (4, 8), "num_stages": (2, 3)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if variant == "flash":
        if case.mode == "forward":
            return flash.skip(case, device)
        return attention.skip_flash(case, device) or backward.skip(case, device)
    if reason := attention.skip(case, device):
        return reason
    if whole_row_config(case, device) is None:
        return "the scores of 16 rows do not fit in a block's shared memory: flash takes them"
    return None


def config(case, variant, device):
    if case.mode != "forward":
        return backward.config(case, device)
    if variant == "whole_row":
        return whole_row_config(case, device)
    return flash.config(case, device)


def whole_row_config(case, device):
    """16 rows by 8 or 4 warps, or None where their scores do not fit."""
    wide = attention.padded(case.sizes["D"]) * case.itemsize > 256 or is_ieee(case)
    shapes = (8, 16 if wide else 32, 3), (8, 16, 2), (4, 16, 2)
    configs = ({"BLOCK_N": n * keys, "WARPS_N": n, "num_stages": stages} for n, keys, stages in shapes)
    return next((own for own in configs if fits(case, "whole_row", device, own) is None), None)


def fits(case, variant, device, config):
    if case.mode != "forward":
        return backward.fits(case, device, config)
    if variant == "whole_row":
        return attention.fits(case, device, config, tensors=1, beside=lambda tile: scores_bytes(tile, case), rows=(16,))
    return flash.fits(case, device, config)


def scores_bytes(tile, case):
    """Shared memory for all scores of a block's 16 rows."""
    return -(-case.sizes["T"] // tile.tokens) * tile.tokens * 16 * 4


def launches(case, variant, device, config):
    if case.mode != "forward":
        behind = backward.launches(case, config)
        return behind if case.mode == "backward" else (*backward.forward_launches(case, device, config), *behind)
    if variant == "flash":
        return flash.launches(case, config)
    B, H, T, _ = case.size("B", "H", "T", "D")
    tile = attention.tile_of(config)
    program = instance(FILE, "whole_row", *attention.head(case), tile.WN, tile.KEYS, tile.STAGES)
    memory, dtypes = tile.memory(case, 1) + scores_bytes(tile, case), (*(case.dtype,) * 3, "int32", case.dtype)
    return (Launch(program, B * H * -(-T // tile.rows), tile.threads, memory, dtypes=dtypes),)


def build(case, variant, device, config):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    if case.mode != "forward":
        return chained(backward.build(case, device, config))
    if variant == "flash":
        return chained(flash.build(case, config))
    import numpy as np

    B, H, T, D = case.size("B", "H", "T", "D")
    (launch,) = launches(case, variant, device, config)
    scale = np.float32(math.log2(math.e) / math.sqrt(D))
    return launch.returning({4: (B, H, T, D)}, (H, T, D, D, scale))
