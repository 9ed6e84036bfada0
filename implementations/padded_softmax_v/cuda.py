"""padded_softmax_v in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

flash: blocks of scores with a running maximum. whole_row: all scores of 16 rows in shared memory.
"""

from pathlib import Path

from implementations._shared.cuda import attention
from implementations._shared.cuda.launch import Launch, instance
from implementations._shared.gpu import rows_are_aligned

BACKEND = "torch"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"
EXPECT = (
    {"variant": ("flash", "whole_row"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
TUNABLES = {
    "flash": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256, 512), "WARPS_M": (1, 2, 4, 8), "WARPS_N": (1, 2, 4, 8),
        "num_stages": (2, 3, 4),
    },
    "whole_row": {"BLOCK_N": (64, 128, 256), "WARPS_N": (4, 8), "num_stages": (2, 3)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if reason := attention.skip(case, device):
        return reason
    if variant == "whole_row" and whole_row_config(case, device) is None:
        return "16 rows of scores do not fit in a block's shared memory: flash takes them"
    return None


def config(case, variant, device):
    return attention.scores_config(case, device) if variant == "flash" else whole_row_config(case, device)


def whole_row_config(case, device):
    """16 rows by 8 warps, or None where their scores do not fit."""
    configs = ({"BLOCK_N": 8 * (64 // case.itemsize), "WARPS_N": 8, "num_stages": stages} for stages in (3, 2))
    return next((own for own in configs if fits(case, "whole_row", device, own) is None), None)


def fits(case, variant, device, config):
    if variant == "flash":
        return attention.scores_fit(case, device, config)
    shape = {"rows": (16,), "tokens": 64 // case.itemsize}
    return attention.fits(case, device, config, tensors=1, beside=lambda tile: scores_bytes(tile, case), **shape)


def scores_bytes(tile, case):
    """Shared memory for all scores of a block's 16 rows, which may begin a vector before n_padd."""
    T = case.sizes["T"] + 16 // case.itemsize - 1
    return -(-T // tile.tokens) * tile.tokens * 16 * case.itemsize


def launches(case, variant, device, config):
    if variant == "flash":
        return (attention.flash_of_scores(FILE, case, config),)
    T, tile = case.sizes["T"], attention.tile_of(config)
    program = instance(
        FILE, "whole_row", *attention.head(case), rows_are_aligned(case, T), tile.WN, tile.KEYS, tile.STAGES
    )
    memory, dtypes = tile.memory(case, 1) + scores_bytes(tile, case), (case.dtype, case.dtype, "int32", case.dtype)
    return (Launch(program, -(-T // tile.rows), tile.threads, memory, dtypes=dtypes),)


def build(case, variant, device, config):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D)."""
    T, D = case.size("T", "D")
    (launch,) = launches(case, variant, device, config)
    return launch.returning({3: (T, D)}, (T, D, D))
