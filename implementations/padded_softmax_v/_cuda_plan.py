"""Which kernel of cuda.cu runs a case, with which tile: also for kernels that launch it as one of theirs."""

from pathlib import Path

from fusebench.backends.cuda import Program
from implementations._attention import Tile, flag, head, limit, padded, reason
from implementations._cuda import Plan

FILE = Path(__file__).with_name("cuda.cu")


def skip(case, variant, device):
    """Why CUDA cannot run this cell, or None."""
    if why := reason(case, device):
        return why
    if variant == "whole_row" and whole_row_tile(case, device) is None:
        return "16 rows of scores do not fit in a block's shared memory: flash takes them"
    return None


def plan(case, variant, device, ready=False):
    """Chooses the tile and the grid from the sizes and the device. `ready`: flash on weights instead of scores."""
    T, D = case.size("T", "D")
    start = f"{head(case, D * case.itemsize % 16 == 0)}, {flag(T * case.itemsize % 16 == 0)}"
    if variant == "flash":
        tile = flash_tile(case, device)
        name, memory = f"flash<{start}, {flag(ready)}, {tile.WM}, ", flash_bytes(tile, case)
    else:
        tile = whole_row_tile(case, device)
        name, memory = f"whole_row<{start}, ", whole_row_bytes(tile, case)
    program = Program(FILE, f"{name}{tile.WN}, {tile.KEYS}, {tile.STAGES}>")
    return Plan(program, -(-T // tile.rows), tile.threads, memory)


def flash_tile(case, device):
    """The most rows, which share what is read of v, that still leave every multiprocessor a block.

    A warp has 2 KiB of att on its way and 2 KiB in hand; 16 warps on each of 132 multiprocessors are 4 MB, which is 4 TB/s
    times a latency of 1 µs.
    """
    keys = 64 if case.itemsize == 2 else 32
    if padded(case.sizes["D"]) > 64:
        keys //= 2  # the sums take the registers
    tiles = (Tile(1, 4, 2, keys), Tile(1, 2, 4, keys), Tile(1, 1, 8, keys), Tile(1, 1, 4, keys // 2))
    fitting = [t for t in tiles if flash_bytes(t, case) <= limit(device)]
    enough = device.multiprocessors or 132
    return next((t for t in fitting if -(-case.sizes["T"] // t.rows) >= enough), min(fitting, key=lambda t: t.rows))


def flash_bytes(tile, case):
    """Shared memory of a block: its rows of y, the stages of v, and weights."""
    return tile.rows * tile.pitch(case) + tile.ring(case, 1) + tile.beside(case)


def whole_row_tile(case, device):
    """16 rows by 8 warps, or None where their scores do not fit."""
    keys = 32 if case.itemsize == 2 else 16
    tiles = (Tile(1, 1, 8, keys, 3), Tile(1, 1, 8, keys, 2))
    return next((t for t in tiles if whole_row_bytes(t, case) <= limit(device)), None)


def whole_row_bytes(tile, case):
    """Shared memory of a block: flash's, and all scores of its rows, which may begin a vector before n_padd."""
    T = case.sizes["T"] + 16 // case.itemsize - 1
    return flash_bytes(tile, case) + -(-T // tile.tokens) * tile.tokens * 16 * case.itemsize
