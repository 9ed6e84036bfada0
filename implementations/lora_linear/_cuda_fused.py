"""The launch of _fused.cuh, lora_linear in one launch on Hopper's warpgroup products (KERNEL=warpgroup), and the choice of its tile."""

import math
from itertools import product

from implementations._shared.cuda import matmul, matmul_choice, matmul_split
from implementations._shared.cuda.launch import TYPES, Launch, instance, too_large
from implementations._shared.gpu import multiprocessors, rows_are_aligned

ROWS, COLUMNS = (128, 64), (128, 64)
LARGEST_RANK = 64  # a panel
# for which it is chosen: with fewer, W is nearly all that is read, and small tiles read it by more blocks
LEAST_ROWS = 33
STAGES = range(6, 1, -1)


def config(case, device):
    """The config of the least time, by the estimates of matmul_choice.py, or None where none fits, or rows are few."""
    choices = []
    for rows, columns in product(ROWS, COLUMNS):
        for stages in STAGES:
            own = {"KERNEL": "warpgroup", "BLOCK_M": rows, "BLOCK_N": columns, "num_stages": stages}
            if fits(case, device, own) is None:
                choices.append(own)
                break
    few = case.sizes["M"] < LEAST_ROWS
    return None if few else min(choices, key=lambda own: time(case, own, device), default=None)


def time(case, config, device):
    """Microseconds that it takes: a slab has the columns of A beside those of W, and one more has B."""
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    rounds = _tiles(case, config) / multiprocessors(device)
    slabs, wide = math.ceil(case.sizes["K"] / matmul.slab(case)) + 1, columns + rank_columns(case)
    of_slab = matmul_choice.slab_time(case, (rows, wide), matmul_split.COSTS[rows, columns], 1)
    end = matmul_choice.END[1] * rows * columns / matmul_choice.AREA
    return math.ceil(rounds) * (slabs * of_slab * matmul_choice.unhurried(rounds) + end)


def rank_columns(case):
    """Columns of A that are multiplied: 16, 32 or 64."""
    return max(16, 1 << (case.sizes["R"] - 1).bit_length())


def fits(case, device, config):
    """Why a config cannot run, or None."""
    K, N, R = case.size("K", "N", "R")
    rows, columns, stages = config["BLOCK_M"], config["BLOCK_N"], config["num_stages"]
    if rows not in ROWS or columns not in COLUMNS:
        return "KERNEL=warpgroup has tiles of 64 or 128 × 64 or 128"
    by_warpgroups = case.itemsize == 2 and matmul.multiplies_by_warpgroups(case, device)
    if not by_warpgroups or case.options["w_layout"] != "kn" or R > LARGEST_RANK or not rows_are_aligned(case, K, N, R):
        return f"KERNEL=warpgroup is for 16 bits on Hopper (9.0), W (K, N), K from 64, N from 128, R up to {LARGEST_RANK}; all rows whole vectors of 16 bytes"
    if stages < 2:
        return f"num_stages is {stages}: one is read while another is written"
    return too_large(_memory(config), device)


def _tiles(case, config):
    M, N = case.size("M", "N")
    return -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])


def _memory(config):
    """Shared memory of a block, as matmul.tile_bytes has it, with a panel of A in each stage."""
    rows, columns, stages = config["BLOCK_M"], config["BLOCK_N"], config["num_stages"]
    return stages * (rows + columns + matmul.PANEL) * 128 + rows * (128 + 16) + 2 * 4 * columns + (stages + 2) * 16


def launch(file, case, device, config):
    """The launch of a config that fits; its tensors are x, W, A, B, scale, b and y."""
    rows, columns, tiles = config["BLOCK_M"], config["BLOCK_N"], _tiles(case, config)
    activation, panel = case.options["activation"].upper(), (matmul.slab(case), matmul.PANEL)
    shape = rows, columns, rank_columns(case), config["num_stages"]
    return Launch(
        instance(file, "fused_warpgroup", TYPES[case.dtype], activation, *shape), min(tiles, multiprocessors(device)), rows * 2 + 128,
        _memory(config), dtypes=(case.dtype,) * 7, boxes=((rows, matmul.slab(case)), panel, panel, panel), tiles=tiles,
    )  # fmt: skip


def build(file, case, device, config):
    """call(x, scale, W, b, A, B) → y."""
    run = launch(file, case, device, config).returning({6: case.size("M", "N")}, case.size("M", "K", "N", "R"))
    return lambda x, scale, W, b, A, B: run(x, W, A, B, scale, b)
