"""padded_attention in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

flash: blocks of tokens with a running maximum. whole_row: all scores of 16 rows in shared memory, for short sequences.
The backward modes are flash's: two launches (_cuda_backward.py).
"""

import math
from pathlib import Path

from implementations._shared.cuda import attention
from implementations._shared.cuda.launch import TYPES, Launch, instance, too_large
from implementations._shared.gpu import is_ieee, multiprocessors
from implementations.padded_attention import _cuda_backward as backward

BACKEND = "torch"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
BACKWARD = {"flash": ("probabilities", "dscaled", "output")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"
EXPECT = (
    {"variant": ("flash", "whole_row"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "flash", "case": ("wide", "batch", "gpt2", "published"), "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0,beside.MUFU.EX2>=64"},
    {"variant": "flash", "case": ("published", "wide"), "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
TUNABLES = {
    "flash": {
        "KERNEL": ("tensor", "warpgroup", "simt"), "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128, 256),
        "WARPS_M": (1, 2, 4, 8), "WARPS_N": (1, 2, 4, 8), "num_stages": (2, 3, 4),
        # those of the launches of mode=backward
        "queries_KERNEL": ("tensor", "warpgroup", "simt"), "tokens_KERNEL": ("tensor", "warpgroup", "simt"),
        "queries_BLOCK_M": (16, 32, 64, 128), "queries_BLOCK_N": (16, 32, 64, 128),
        "tokens_BLOCK_M": (16, 32, 64, 128), "tokens_BLOCK_N": (16, 32, 64),
    },
    "whole_row": {"BLOCK_N": (64, 128, 256), "WARPS_N": (4, 8), "num_stages": (2, 3)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
WARPGROUP_TILES = ((128, 128), (64, 128))  # rows × tokens: 64 rows are for heads that do not fill the card


def skip(case, variant, device):
    if variant == "flash":
        behind = None if case.mode == "forward" else backward.skip
        return attention.skip_flash(case, device) or (behind and behind(case, device))
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
    B, H, T, _ = case.size("B", "H", "T", "D")
    tiles = B * H * -(-T // 128)
    chosen = warpgroup(128 if tiles >= 0.9 * multiprocessors(device) else 64, 128)
    if fits(case, variant, device, chosen) is None:
        return chosen
    return {"KERNEL": "simt" if is_ieee(case) else "tensor"} | attention.flash_config(case, device)


def warpgroup(rows, tokens):
    """The config of flash_warpgroup with that tile."""
    return {
        "KERNEL": "warpgroup", "BLOCK_M": rows, "BLOCK_N": tokens, "WARPS_M": rows // 16, "WARPS_N": 1, "num_stages": 2,
    }  # fmt: skip


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
    if config["KERNEL"] == "warpgroup":
        return no_warpgroups(case, device, config)
    own = "simt" if is_ieee(case) else "tensor"
    if config["KERNEL"] != own:
        return f"KERNEL={own} multiplies {case.dtype} in precision {case.precision}, not {config['KERNEL']}"
    return attention.flash_fits(case, device, config)


def no_warpgroups(case, device, config):
    """Why flash_warpgroup cannot be compiled for the device or take the case, or None: no box is larger than what it is of."""
    (T, D), tile = case.size("T", "D"), (config["BLOCK_M"], config["BLOCK_N"])
    if tile not in WARPGROUP_TILES or {**config, "num_stages": 2} != warpgroup(*tile):
        tiles = ", ".join(f"{rows}×{tokens}" for rows, tokens in WARPGROUP_TILES)
        return f"KERNEL=warpgroup has tiles of its own, BLOCK_M×BLOCK_N: {tiles}; WARPS_M=BLOCK_M/16, WARPS_N=1"
    if tuple(device.capability) != (9, 0) or case.itemsize != 2 or D % 8 or not 64 <= D <= 128 or max(tile) > T:
        return "KERNEL=warpgroup is for Hopper (9.0), 16 bits, D from 64 to 128 in eights, T from 128"
    if config["num_stages"] < 2:
        return f"num_stages is {config['num_stages']}: one is read while another is written"
    return too_large(warpgroup_bytes(case, config), device)


def warpgroup_bytes(case, config):
    """Shared memory of a block: q, and stages of k and of v with their barriers."""
    row = backward.warpgroup_columns(case) * 2
    return config["BLOCK_M"] * row + 2 * config["num_stages"] * (config["BLOCK_N"] * row + 16)


def scores_bytes(tile, case):
    """Shared memory for all scores of a block's 16 rows."""
    return -(-case.sizes["T"] // tile.tokens) * tile.tokens * 16 * 4


def launches(case, variant, device, config):
    if case.mode != "forward":
        behind = backward.launches(case, config)
        return behind if case.mode == "backward" else (backward.forward_launch(case, device), *behind)
    B, H, T, _ = case.size("B", "H", "T", "D")
    dtypes = *(case.dtype,) * 3, "int32", case.dtype
    if variant == "whole_row":
        tile = attention.tile_of(config)
        program = instance(FILE, "whole_row", *attention.head(case), tile.WN, tile.KEYS, tile.STAGES)
        memory = tile.memory(case, 1) + scores_bytes(tile, case)
        return (Launch(program, B * H * -(-T // tile.rows), tile.threads, memory, dtypes=dtypes),)
    if config["KERNEL"] != "warpgroup":
        return (attention.flash(FILE, case, config, dtypes),)
    rows, tokens, stages = config["BLOCK_M"], config["BLOCK_N"], config["num_stages"]
    program = instance(
        FILE, "flash_warpgroup", TYPES[case.dtype], backward.warpgroup_columns(case), rows, tokens, stages
    )
    grid, memory, boxes = (
        B * H * -(-T // rows),
        warpgroup_bytes(case, config),
        ((1, rows, 64), (1, tokens, 64), (1, tokens, 64)),
    )
    return (Launch(program, grid, rows * 2 + 128, memory, dtypes=dtypes, boxes=boxes),)


def build(case, variant, device, config):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    if case.mode != "forward":
        return backward.build(case, device, config)
    import numpy as np
    import torch

    _, H, T, D = case.size("B", "H", "T", "D")
    (described,) = launches(case, variant, device, config)
    launch = described.bind()
    scale = np.float32(math.log2(math.e) / math.sqrt(D))

    def call(q, k, v, n_padd):
        y = torch.empty_like(q)
        launch(q, k, v, n_padd, y, H, T, D, D, scale)
        return y

    return call
