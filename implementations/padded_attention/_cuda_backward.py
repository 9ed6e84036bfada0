"""padded_attention's backward modes in CUDA C++: the launches of cuda_backward.cu, which says what they are, and those of
cuda_backward_hopper.cu, which take their places on Hopper; and the choice of tiles.

The tunables are KERNEL, "warpgroup" being Hopper's, BLOCK_M and BLOCK_N: of the launch `queries` a tile of rows and of tokens, of `tokens` one of
tokens and of rows. Rows of 16 bits that are no whole vectors are copied for Hopper's kernels: those of q, k and v in the forward pass, whose
copies are kept, and those of dy.
"""

import math
from pathlib import Path

import numpy as np

from implementations._shared.cuda import attention
from implementations._shared.cuda.launch import (
    TYPES,
    Launch,
    in_turn,
    instance,
    not_one_of,
    not_usual,
    of_launch,
    prefixed,
    too_large,
)
from implementations._shared.gpu import multiprocessors, rows_are_aligned, usual_kernel
from implementations.padded_attention import _cuda_flash as flash

FILE, HOPPER = (Path(__file__).with_name(name) for name in ("cuda_backward.cu", "cuda_backward_hopper.cu"))
ROWS = 128, 64, 32, 16  # a warp has 16 of them
LAUNCHES = "queries", "tokens"
# of each launch on Hopper, by columns of a row and BLOCK_M: BLOCK_N and stages. The sums of 64 tokens of 128 columns leave too few registers
# for two blocks on a multiprocessor.
WARPGROUP_TILES = {
    "queries": {(64, 128): (128, 3), (64, 64): (128, 2), (128, 128): (64, 3), (128, 64): (64, 2)},
    "tokens": {(64, 128): (64, 4), (64, 64): (64, 3), (128, 128): (64, 3)},
}


def skip(case, device):
    """Why it cannot run the case, or None."""
    return (
        None
        if all(_tiles(case, device, name) for name in LAUNCHES)
        else "16 rows do not fit in a block's shared memory"
    )


def config(case, device):
    """Of each launch the most rows that leave every multiprocessor a block, nearly so on Hopper, or else the fewest."""
    own = {}
    for name in LAUNCHES:
        on_hopper = warpgroups(case, device, name)
        fitting = on_hopper or _tiles(case, device, name)
        enough = _enough(case, fitting, (0.9 if on_hopper else 1) * multiprocessors(device))
        own |= prefixed(name, (enough or fitting[-1:])[0])
    return own


def _enough(case, tiles, blocks):
    B, H, T = case.size("B", "H", "T")
    return [tile for tile in tiles if B * H * -(-T // tile["BLOCK_M"]) >= blocks]


def warpgroups(case, device, name):
    """The configs of a launch on Hopper that fit, with the most rows first."""
    columns = flash.warpgroup_columns(case)
    tiles = (
        {"KERNEL": "warpgroup", "BLOCK_M": rows, "BLOCK_N": keys}
        for (wide, rows), (keys, _) in WARPGROUP_TILES[name].items()
        if wide == columns
    )
    return [tile for tile in tiles if _misfit(case, device, name, tile) is None]


def _tiles(case, device, name):
    """The configs of a launch that fit elsewhere, with the most rows first. What a warp sums takes registers, of tokens twice as many."""
    wide = attention.padded(case.sizes["D"]) * (2 if name == "tokens" else 1)
    most = 64 if wide <= 64 else 32 if wide <= 128 else 16
    keys = most if case.itemsize == 2 else min(most, 32)
    tiles = ({"KERNEL": usual_kernel(case), "BLOCK_M": rows, "BLOCK_N": keys} for rows in ROWS)
    return [tile for tile in tiles if _misfit(case, device, name, tile) is None]


def _tile(config):
    return attention.AttentionTile(1, config["BLOCK_M"] // 16, 1, config["BLOCK_N"])


def _memory(case, tile):
    """Shared memory of a block: its rows of two tensors, and stages of two."""
    return tile.memory(case, 2) + tile.rows * tile.pitch(case)


def _warpgroup_memory(case, name, config):
    """Shared memory of a block: its rows of two tensors, stages of two with their barriers, and of `tokens` what it knows of a stage's rows."""
    rows, row = config["BLOCK_M"], flash.warpgroup_columns(case) * 2
    keys, stages = WARPGROUP_TILES[name][row // 2, rows]
    return 2 * rows * row + stages * (2 * (keys * row + 16) + (keys * 8 + 16 if name == "tokens" else 0))


def _misfit(case, device, name, config):
    if config["KERNEL"] == "warpgroup":
        return _no_warpgroups(case, device, name, config)
    if reason := not_usual(case, config["KERNEL"]):
        return reason
    if reason := not_one_of("BLOCK_M", config["BLOCK_M"], ROWS) or not_one_of(
        "BLOCK_N", config["BLOCK_N"], (16, 32, 64)
    ):
        return reason
    return too_large(_memory(case, _tile(config)), device)


def _no_warpgroups(case, device, name, config):
    """Why a launch cannot be compiled for the device or take the case, or None: no box is larger than what it is of."""
    tile = config["BLOCK_M"], config["BLOCK_N"]
    own = WARPGROUP_TILES[name]
    known = [(rows, keys) for (columns, rows), (keys, _) in own.items() if columns == flash.warpgroup_columns(case)]
    if tile not in known:
        tiles = ", ".join(f"{rows}×{keys}" for rows, keys in known)
        return f"KERNEL=warpgroup has tiles of its own, BLOCK_M×BLOCK_N: {tiles}; not {tile[0]}×{tile[1]}"
    reason = flash.not_of_warpgroups(case, device, max(tile))
    return reason or too_large(_warpgroup_memory(case, name, config), device)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    return next(filter(None, (_misfit(case, device, name, of_launch(name, config)) for name in LAUNCHES)), None)


def _forward_config(case, device, config):
    if config["queries_KERNEL"] == "warpgroup":
        return flash.alone(case, device)
    return attention.flash_config(case, device)


def _copies(case, config):
    """Whether each launch, and then whether any, reads rows that are copied first."""
    each = [flash.copies_rows(case, of_launch(name, config)) for name in LAUNCHES]
    return *each, any(each)


def forward_launches(case, device, config):
    """flash with the logarithms, on Hopper's kernel where the gradients are, behind a copy of rows where one is read."""
    own = flash.launch(case, _forward_config(case, device, config), logarithms=True)
    return in_turn(flash.copy_launch(case), own) if _copies(case, config)[-1] else (own,)


def launches(case, config):
    """`query_gradients` and `token_gradients`, or those of the same name on Hopper, behind a copy of dy where one is read."""
    d = case.dtype
    dtypes = {
        "queries": (d, d, d, d, "int32", d, "float32", "float32", d),
        "tokens": (d, d, d, d, "int32", "float32", "float32", d, d),
    }
    copy = (flash.copy_launch(case, 1),) if _copies(case, config)[-1] else ()
    return in_turn(*copy, *(_launch(case, name, of_launch(name, config), dtypes[name]) for name in LAUNCHES))


def _launch(case, name, config, dtypes):
    B, H, T = case.size("B", "H", "T")
    kernel = {"queries": "query_gradients", "tokens": "token_gradients"}[name]
    rows, keys = config["BLOCK_M"], config["BLOCK_N"]
    grid = B * H * -(-T // rows)
    if config["KERNEL"] != "warpgroup":
        tile = _tile(config)
        program = instance(FILE, kernel, *attention.head(case), tile.WM, tile.KEYS)
        return Launch(program, grid, tile.threads, _memory(case, tile), dtypes=dtypes)
    columns = flash.warpgroup_columns(case)
    _, stages = WARPGROUP_TILES[name][columns, rows]
    tile = rows_are_aligned(case, case.sizes["D"]), columns, rows, keys, stages
    program = instance(HOPPER, f"{kernel}_warpgroup", TYPES[case.dtype], *tile)
    own, others = (1, rows, 64), (1, keys, 64)  # what a copy brings of q, k, v and dy
    boxes = (own, others, others, own) if name == "queries" else (others, own, own, others)
    return Launch(program, grid, rows * 2 + 128, _warpgroup_memory(case, name, config), dtypes=dtypes, boxes=boxes)


def build(case, device, config):
    """(forward, backward); y and the logarithms (B, H, T) are kept beside the inputs."""
    shape = B, H, T, D = case.size("B", "H", "T", "D")
    scale, root = np.float32(math.log2(math.e) / math.sqrt(D)), np.float32(math.sqrt(D))
    kept = forward_launches(case, device, config)[-1].returning({4: shape, 5: (B, H, T)}, (H, T, D, scale))
    first, second = launches(case, config)[-2:]
    queries = first.returning({7: (B, H, T), 8: shape}, (H, T, D, scale, root))
    tokens = second.returning({7: shape, 8: shape}, (H, T, D, scale, root))

    of_queries, of_tokens, copies = _copies(case, config)
    whole = flash.copy(case) if copies else lambda *rows: rows
    of_dy = (
        flash.copy_launch(case, 1).returning({3: flash.copied_shape(case)}, absent=(1, 2, 4, 5))
        if copies
        else lambda dy: dy
    )
    of_flash = flash.copies_rows(case, _forward_config(case, device, config))

    def forward(q, k, v, n_padd):
        rows, copied = (q, k, v), whole(q, k, v)
        y, logarithms = kept(*(copied if of_flash else rows), n_padd)
        return y, (rows, copied, n_padd, y, logarithms)

    def backward(residuals, dy):
        rows, copied, n_padd, y, logarithms = residuals
        rows, copied = (*rows, dy), (*copied, of_dy(dy))
        deltas, dq = queries(*(copied if of_queries else rows), n_padd, y, logarithms)
        return dq, *tokens(*(copied if of_tokens else rows), n_padd, logarithms, deltas)

    return forward, backward
