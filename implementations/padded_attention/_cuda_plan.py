"""Which kernel of cuda.cu runs a case, with which tile: also for kernels that launch it as one of theirs."""

from pathlib import Path

from fusebench.backends.cuda import Program
from implementations._attention import Tile, head, is_ieee, limit, padded, reason
from implementations._cuda import TYPES, Plan

FILE = Path(__file__).with_name("cuda.cu")
ENOUGH = 0.9  # blocks a multiprocessor
WARPGROUP_ROWS, WARPGROUP_TOKENS, WARPGROUP_STAGES = 128, 128, 2


def skip(case, variant, device):
    """Why CUDA cannot run this cell, or None."""
    if why := reason(case, device):
        return why
    if variant == "whole_row" and whole_row_tile(case, device) is None:
        return "the scores of 16 rows do not fit in a block's shared memory: flash takes them"
    return None


def plan(case, variant, device, whole=True):
    """Chooses the tile and the grid from the sizes and the device; not `whole` where q, k and v are parts of one tensor, which
    may begin anywhere."""
    B, H, T, D = case.size("B", "H", "T", "D")
    if variant == "flash" and whole and multiplies_by_warpgroups(case, device):
        wide = 64 if D <= 64 else 128
        name = f"flash_warpgroup<{TYPES[case.dtype]}, {wide}, {WARPGROUP_ROWS}, {WARPGROUP_TOKENS}, {WARPGROUP_STAGES}>"
        slab = WARPGROUP_TOKENS * wide * 2 + 16
        memory = WARPGROUP_ROWS * wide * 2 + 2 * WARPGROUP_STAGES * slab
        rows, tokens = (1, WARPGROUP_ROWS, 64), (1, WARPGROUP_TOKENS, 64)
        grid, block = B * H * -(-T // WARPGROUP_ROWS), WARPGROUP_ROWS * 2 + 128
        return Plan(Program(FILE, name), grid, block, memory, (rows, tokens, tokens))
    start = head(case, D * case.itemsize % 16 == 0)
    if variant == "flash":
        tile = flash_tile(case, device)
        program, memory = Program(FILE, f"flash<{start}, {tile.arguments}>"), flash_bytes(tile, case)
    else:
        tile = whole_row_tile(case, device)
        name = f"whole_row<{start}, {tile.WN}, {tile.KEYS}, {tile.STAGES}>"
        program, memory = Program(FILE, name), whole_row_bytes(tile, case)
    return Plan(program, B * H * -(-T // tile.rows), tile.threads, memory)


def multiplies_by_warpgroups(case, device):
    """Whether flash_warpgroup can be compiled for the device, takes the case (no box is larger than what it is of), and leaves
    nearly every multiprocessor a block."""
    B, H, T, D = case.size("B", "H", "T", "D")
    blocks = B * H * -(-T // WARPGROUP_ROWS)
    can = tuple(device.capability) == (9, 0) and case.itemsize == 2 and D % 8 == 0 and 64 <= D <= 128
    return can and T >= WARPGROUP_ROWS and blocks >= ENOUGH * (device.multiprocessors or 132)


def flash_tile(case, device):
    """The most rows that still leave nearly every multiprocessor a block: rows share what is read of k and v.

    A warp multiplies 32 rows with what it loads from shared memory where registers allow, since 16 keep the tensor cores
    waiting for it. The last tiles are for few heads: their warps share rows, and take every so-many-th token.
    """
    B, H, T, D = case.size("B", "H", "T", "D")
    if case.itemsize == 2:
        wide = padded(D) > 64
        large = Tile(1, 8, 1, 64) if wide else Tile(2, 4, 1, 64)
        tiles = (large, Tile(1, 4, 2, 32), Tile(1, 2, 4, 32), Tile(1, 1, 8, 16 if wide else 32), Tile(1, 1, 4, 16))
    else:
        tiles = (Tile(1, 8, 1, 32), Tile(1, 4, 2, 16), Tile(1, 2, 4, 16), Tile(1, 1, 8, 16), Tile(1, 1, 4, 16))
    fitting = [t for t in tiles if flash_bytes(t, case) <= limit(device)]
    enough = ENOUGH * (device.multiprocessors or 132)
    return next((t for t in fitting if B * H * -(-T // t.rows) >= enough), min(fitting, key=lambda t: t.rows))


def flash_bytes(tile, case):
    """Shared memory of a block: its rows, the stages of k and v, and weights."""
    return tile.rows * tile.pitch(case) + tile.ring(case, 2) + tile.beside(case)


def whole_row_tile(case, device):
    """16 rows by 8 or 4 warps, or None where their scores do not fit."""
    wide = padded(case.sizes["D"]) * case.itemsize > 256 or is_ieee(case)
    tiles = (Tile(1, 1, 8, 16 if wide else 32, 3), Tile(1, 1, 8, 16, 2), Tile(1, 1, 4, 16, 2))
    return next((t for t in tiles if whole_row_bytes(t, case) <= limit(device)), None)


def whole_row_bytes(tile, case):
    """Shared memory of a block: its rows, the stages of k or v, weights, and all scores of the rows."""
    scores = -(-case.sizes["T"] // tile.tokens) * tile.tokens * 16 * 4
    return tile.rows * tile.pitch(case) + tile.ring(case, 1) + tile.beside(case) + scores
