"""padded_softmax_v in CUDA C++ (cuda.cu, which describes the algorithms), one launch in every variant.

flash: blocks of scores with a running maximum. cluster: the same with the tokens shared out to the blocks of a cluster. whole_row: all
scores of 16 rows in shared memory.
"""

from pathlib import Path

from implementations._shared.cuda import attention
from implementations._shared.cuda.launch import Launch, instance, not_one_of
from implementations._shared.gpu import multiprocessors, rows_are_aligned

BACKEND = "torch"
FUSED = True
VARIANTS = {"cluster": ("probabilities",), "flash": ("probabilities",), "whole_row": ("probabilities",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("flash", "whole_row"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "cluster", "case": ("published", "large"), "dtype": "bfloat16", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    {"variant": "cluster", "case": "published", "dtype": "float32", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    "flash": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256, 512), "WARPS_M": (1, 2, 4, 8), "WARPS_N": (1, 2, 4, 8),
        "num_stages": (2, 3, 4),
    },
    "cluster": {
        "CLUSTER": (1, 2, 4, 8), "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256), "WARPS_M": (1, 2, 4, 8), "WARPS_N": (1, 2, 4, 8),
        "num_stages": (2, 3, 4),
    },
    "whole_row": {"BLOCK_N": (64, 128, 256), "WARPS_N": (4, 8), "num_stages": (2, 3)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if reason := attention.skip_scores(case, device):
        return reason
    if variant == "whole_row" and whole_row_config(case, device) is None:
        return "16 rows of scores do not fit in a block's shared memory: flash takes them"
    if variant == "cluster" and device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    return None


def config(case, variant, device):
    if variant == "flash":
        return attention.scores_config(case, device)
    return (cluster_config if variant == "cluster" else whole_row_config)(case, device)


def cluster_config(case, device):
    """64 rows, which share what is read of v, where every third multiprocessor can have as many, of 128 columns every fourth; else 32 or 16; and more
    blocks of a cluster until there are four for each multiprocessor: those of long rows begin first, and those of short ones fill the gaps."""
    T, columns, parts = case.sizes["T"], attention.width(case), attention.column_parts(case)
    few = 64 // case.itemsize  # tokens that a warp takes at least
    # scores that pass through shared memory take the room of a stage, so that a multiprocessor has two blocks
    stages = 3 if rows_are_aligned(case, T) else 2
    rows64 = attention.AttentionTile(1, 4, 2, 64 if case.itemsize == 2 and columns <= 64 else few, stages)
    # of 1024 tokens in float32 an H200 took 11.0 µs with 4 warps, 11.7 with 8
    rows16 = (attention.AttentionTile(1, 1, warps, few) for warps in ((4, 8) if case.itemsize == 4 else (8, 4)))
    # 2000 tokens of 64 elements in bfloat16 took 11.1 µs with 32 rows, 16.6 with 16, whose blocks are almost twice what the card has places for
    rows32 = attention.AttentionTile(1, 2, 4, few, 2)
    # 3000 and 4096 tokens of 64 in bfloat16 took 16.7 and 21.4 µs with 64 rows, 18.0 and 27.5 with 32; in float32 it is not measured
    many = T * parts * max(1.6 if case.itemsize == 2 else 1.0, columns / 64) >= 32 * multiprocessors(device)
    some = case.itemsize == 2 and T * parts >= 12 * multiprocessors(device)
    tiles = (*[rows64] * many, *[rows32] * some, *rows16)
    tile = next(t for t in tiles if fits(case, "cluster", device, {"CLUSTER": 1} | t.config) is None)
    blocks = -(-T // tile.rows) * parts
    return {"CLUSTER": next((n for n in (1, 2) if n * blocks >= 4 * multiprocessors(device)), 4)} | tile.config


def whole_row_config(case, device):
    """16 rows by 8 warps, or None where their scores do not fit."""
    configs = ({"BLOCK_N": 8 * (64 // case.itemsize), "WARPS_N": 8, "num_stages": stages} for stages in (3, 2))
    return next((own for own in configs if fits(case, "whole_row", device, own) is None), None)


def fits(case, variant, device, config):
    if variant == "flash":
        return attention.scores_fit(case, device, config)
    shape = {"rows": (16,), "tokens": 64 // case.itemsize}
    if variant == "cluster":
        reason = not_one_of("CLUSTER", config["CLUSTER"], attention.CLUSTERS)
        return reason or attention.fits(
            case, device, config, tensors=1, beside=lambda tile: beside_tiles(tile, case), **shape
        )
    return attention.fits(case, device, config, tensors=1, beside=lambda tile: scores_bytes(tile, case), **shape)


def beside_tiles(tile, case):
    """Shared memory of `cluster` beside that of its tiles."""
    return attention.cluster_merge(tile, case, 1) + attention.scores_memory(tile, case)


def scores_bytes(tile, case):
    """Shared memory for all scores of a block's 16 rows, which may begin a vector before n_padd, and for four vectors of each more where rows
    of att begin anywhere."""
    T = case.sizes["T"] + 16 // case.itemsize - 1
    behind = 0 if rows_are_aligned(case, case.sizes["T"]) else 16 * 64
    return -(-T // tile.tokens) * tile.tokens * 16 * case.itemsize + behind


def launches(case, variant, device, config):
    if variant == "flash":
        return (attention.flash_of_scores(FILE, case, config),)
    T, tile = case.sizes["T"], attention.tile_of(config)
    head, dtypes = (*attention.head(case), rows_are_aligned(case, T)), (case.dtype, case.dtype, "int32", case.dtype)
    if variant == "cluster":
        program = instance(FILE, "cluster", *head, config["CLUSTER"], tile.WM, tile.WN, tile.KEYS, tile.STAGES)
        grid, memory = config["CLUSTER"] * -(-T // tile.rows), tile.memory(case, 1) + beside_tiles(tile, case)
    else:
        program = instance(FILE, "whole_row", *head, tile.WN, tile.KEYS, tile.STAGES)
        grid, memory = -(-T // tile.rows), tile.memory(case, 1) + scores_bytes(tile, case)
    return (Launch(program, grid * attention.column_parts(case), tile.threads, memory, dtypes=dtypes),)


def build(case, variant, device, config):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D)."""
    T, D = case.size("T", "D")
    (launch,) = launches(case, variant, device, config)
    return launch.returning({3: (T, D)}, (T, D, D))
