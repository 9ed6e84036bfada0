"""padded_attention in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

flash: blocks of tokens with a running maximum. whole_row: all scores of 16 rows in shared memory, for short sequences.
"""

import math
from pathlib import Path

from implementations._shared.cuda import attention
from implementations._shared.cuda.attention import AttentionTile
from implementations._shared.cuda.launch import TYPES, Plan, instance
from implementations._shared.gpu import is_ieee, multiprocessors

BACKEND = "torch"
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
WARPGROUP_ROWS, WARPGROUP_TOKENS, WARPGROUP_STAGES = 128, 128, 2


def skip(case, variant, device):
    if variant == "flash":
        return attention.skip_flash(case, device)
    if reason := attention.skip(case, device):
        return reason
    if whole_row_tile(case, device) is None:
        return "the scores of 16 rows do not fit in a block's shared memory: flash takes them"
    return None


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """Chooses the kernel, its tile and its grid from the sizes and the device."""
    B, H, T, _ = case.size("B", "H", "T", "D")
    if variant == "flash":
        by_warpgroups = multiplies_by_warpgroups(case, device)
        return flash_warpgroup(case) if by_warpgroups else attention.flash(FILE, case, device)
    tile = whole_row_tile(case, device)
    program = instance(FILE, "whole_row", *attention.head(case), tile.WN, tile.KEYS, tile.STAGES)
    return Plan(program, B * H * -(-T // tile.rows), tile.threads, whole_row_bytes(tile, case))


def multiplies_by_warpgroups(case, device):
    """Whether flash_warpgroup can be compiled for the device, takes the case (no box is larger than what it is of), and leaves
    nearly every multiprocessor a block."""
    B, H, T, D = case.size("B", "H", "T", "D")
    blocks = B * H * -(-T // WARPGROUP_ROWS)
    can = tuple(device.capability) == (9, 0) and case.itemsize == 2 and D % 8 == 0 and 64 <= D <= 128
    return can and T >= WARPGROUP_ROWS and blocks >= 0.9 * multiprocessors(device)


def flash_warpgroup(case):
    B, H, T, D = case.size("B", "H", "T", "D")
    wide = 64 if D <= 64 else 128
    shape = WARPGROUP_ROWS, WARPGROUP_TOKENS, WARPGROUP_STAGES
    program = instance(FILE, "flash_warpgroup", TYPES[case.dtype], wide, *shape)
    stage = WARPGROUP_TOKENS * wide * 2 + 16
    memory = WARPGROUP_ROWS * wide * 2 + 2 * WARPGROUP_STAGES * stage
    rows, tokens = (1, WARPGROUP_ROWS, 64), (1, WARPGROUP_TOKENS, 64)
    return Plan(
        program, B * H * -(-T // WARPGROUP_ROWS), WARPGROUP_ROWS * 2 + 128, memory, boxes=(rows, tokens, tokens)
    )


def whole_row_tile(case, device):
    """16 rows by 8 or 4 warps, or None where their scores do not fit."""
    wide = attention.padded(case.sizes["D"]) * case.itemsize > 256 or is_ieee(case)
    shapes = (1, 1, 8, 16 if wide else 32, 3), (1, 1, 8, 16, 2), (1, 1, 4, 16, 2)
    tiles = (AttentionTile(*shape) for shape in shapes)
    return next((t for t in tiles if attention.fits(whole_row_bytes(t, case), device)), None)


def whole_row_bytes(tile, case):
    """Shared memory of a block: its rows, the stages of k or v, weights, and all scores of the rows."""
    return tile.memory(case, 1) + -(-case.sizes["T"] // tile.tokens) * tile.tokens * 16 * 4


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    import numpy as np
    import torch

    _, H, T, D = case.size("B", "H", "T", "D")
    launch = plan(case, variant, device).bind()
    scale = np.float32(math.log2(math.e) / math.sqrt(D))

    def call(q, k, v, n_padd):
        if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
            raise ValueError("q, k or v is not contiguous; pass q.contiguous()")
        y = torch.empty_like(q)
        launch(q, k, v, n_padd, y, H, T, D, D, scale)
        return y

    return call
