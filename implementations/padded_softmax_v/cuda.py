"""padded_softmax_v in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

flash: blocks of scores with a running maximum. whole_row: all scores of 16 rows in shared memory.
"""

from pathlib import Path

from implementations._shared.cuda import attention
from implementations._shared.cuda.attention import AttentionTile
from implementations._shared.cuda.launch import Plan, instance
from implementations._shared.gpu import rows_are_aligned

BACKEND = "torch"
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if reason := attention.skip(case, device):
        return reason
    if variant == "whole_row" and whole_row_tile(case, device) is None:
        return "16 rows of scores do not fit in a block's shared memory: flash takes them"
    return None


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """Chooses the tile and the grid from the sizes and the device."""
    if variant == "flash":
        return attention.flash_of_scores(FILE, case, device)
    T, tile = case.sizes["T"], whole_row_tile(case, device)
    shape = tile.WN, tile.KEYS, tile.STAGES
    program = instance(FILE, "whole_row", *attention.head(case), rows_are_aligned(case, T), *shape)
    return Plan(program, -(-T // tile.rows), tile.threads, whole_row_bytes(tile, case))


def whole_row_tile(case, device):
    """16 rows by 8 warps, or None where their scores do not fit."""
    keys = 32 if case.itemsize == 2 else 16
    tiles = (AttentionTile(1, 1, 8, keys, stages) for stages in (3, 2))
    return next((t for t in tiles if attention.fits(whole_row_bytes(t, case), device)), None)


def whole_row_bytes(tile, case):
    """Shared memory of a block: its rows, the stages of v, weights, and all scores of its rows, which may begin a vector before
    n_padd."""
    T = case.sizes["T"] + 16 // case.itemsize - 1
    return tile.memory(case, 1) + -(-T // tile.tokens) * tile.tokens * 16 * case.itemsize


def build(case, variant, device):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D)."""
    import torch

    T, D = case.size("T", "D")
    launch = plan(case, variant, device).bind()

    def call(att, v, n_padd):
        if not (att.is_contiguous() and v.is_contiguous()):
            raise ValueError("att or v is not contiguous; pass att.contiguous()")
        y = torch.empty_like(v)
        launch(att, v, n_padd, y, T, D, D)
        return y

    return call
