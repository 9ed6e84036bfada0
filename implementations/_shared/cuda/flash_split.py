"""The tiles of kernels on hopper/flash_split.cuh, and their launch: attention of few heads, whose few tiles of rows leave most of the card
idle unless blocks share the tokens of one. D is that of q, k and v as the copy engine brings them: whole panels.

The tunables are those of attention.py with KERNEL=warpgroup, and SPLIT: so many blocks share the tokens of BLOCK_M rows.
"""

from implementations._shared.cuda.attention import LARGEST_D, warpgroup_rows
from implementations._shared.cuda.launch import TYPES, Launch, instance, too_large
from implementations._shared.gpu import multiprocessors

ROWS, TOKENS, SPLITS, WIDTHS = (64, 128), (64, 128), (8, 4, 2, 1), (64, 128, 192, 256)
# An H200 took for padded_attention in tiles of 64 tokens and of 128: 4.0 and 4.6 µs at 1×256×64, 5.9 and 5.6 at 1×1024×64; and by two blocks a tile and four: 18.0 and
# 12.9 at 1×4096×64, 9.3 and 8.3 at 2×1500×64, but 7.7 and 9.7 at 4×1024×64
FEW_TOKENS, MANY_TOKENS = 512, 1500


def config(case, device):
    """The config, or None where none fits: as many blocks as there are multiprocessors, of long rows twice as many."""
    (B, H, T, D), sms = case.size("B", "H", "T", "D"), multiprocessors(device)
    rows, tokens = warpgroup_rows(case, device, B * H), 64 if D > LARGEST_D or T < FEW_TOKENS else 128
    most = 2 * sms if T >= MANY_TOKENS and D <= 64 else sms  # of 128 columns not compared
    # 8 blocks took 11.7 µs where 4 took 11.4: 1024 tokens of an H200's shcsa, published
    split = next(s for s in SPLITS[1:] if s == 1 or (B * H * -(-T // rows) * s <= most and s * min(TOKENS) <= T))
    own = {
        "KERNEL": "warpgroup", "BLOCK_M": rows, "BLOCK_N": tokens, "WARPS_M": rows // 16, "WARPS_N": 1, "num_stages": 2,
        "SPLIT": split,
    }  # fmt: skip
    return own if fits(case, device, own) is None else None


def fits(case, device, config):
    """Why a config cannot run, or None. No box is larger than what it is of."""
    (T, D), rows, tokens = case.size("T", "D"), config["BLOCK_M"], config["BLOCK_N"]
    if rows not in ROWS or tokens not in TOKENS or config["SPLIT"] not in SPLITS:
        return "KERNEL=warpgroup has tiles of its own: BLOCK_M 64 or 128, BLOCK_N 64 or 128, SPLIT 1, 2, 4, 8"
    if (config["WARPS_M"], config["WARPS_N"]) != (rows // 16, 1):
        return "KERNEL=warpgroup: WARPS_M=BLOCK_M/16, WARPS_N=1"
    if tuple(device.capability) != (9, 0) or case.itemsize != 2 or D not in WIDTHS or max(rows, tokens) > T:
        return f"KERNEL=warpgroup is for Hopper (9.0), 16 bits, D one of {WIDTHS}, T from {max(rows, tokens)}"
    if config["num_stages"] < 2:
        return f"num_stages is {config['num_stages']}: one is read while another is written"
    split, held = config["SPLIT"], rows * D * 2 + 2 * config["num_stages"] * tokens * D * 2
    if (sums := (split - 1) * (D // 8 // split + 1) * rows * 2 * 16) > held:
        return f"KERNEL=warpgroup: q and the stages are {held} bytes, whose place {sums} of other blocks' sums take"
    return too_large(memory(case, config), device)


def memory(case, config):
    """Shared memory of a block: q, stages of k and of v with their barriers, and the barrier of the sums."""
    row = case.sizes["D"] * 2
    return config["BLOCK_M"] * row + 2 * config["num_stages"] * (config["BLOCK_N"] * row + 16) + 16


def launch(file, case, config, dtypes=(), columns=None):
    """The launch of `flash_warpgroup` of `file`, of q, k and v side by side, twice, and what is behind them. The output has `columns` of
    D, or all."""
    (T, D), rows, tokens, split = case.size("T", "D"), config["BLOCK_M"], config["BLOCK_N"], config["SPLIT"]
    tile = D, rows, tokens, config["num_stages"], split, columns or D
    program = instance(file, "flash_warpgroup", TYPES[case.dtype], *tile)
    grid, boxes = -(-T // rows) * split, ((rows, 64), (tokens, 64))
    return Launch(program, grid, rows * 2 + 128, memory(case, config), dtypes=dtypes, boxes=boxes)
