"""padded_attention's backward modes in CUDA C++: the launches of cuda_backward.cu, which says what they are, and the choice of tiles.

The tunables are BLOCK_M and BLOCK_N of query_gradients' tile of rows and tokens, and of token_gradients' of tokens and rows.
"""

import math
from pathlib import Path

import numpy as np

from implementations._shared.cuda import attention
from implementations._shared.cuda.launch import Launch, instance, not_one_of, of_launch, prefixed, too_large
from implementations._shared.gpu import multiprocessors

FILE = Path(__file__).with_name("cuda_backward.cu")
ROWS = 128, 64, 32, 16  # a warp has 16 of them
LAUNCHES = "queries", "tokens"


def skip(case, device):
    """Why it cannot run the case, or None."""
    return (
        None
        if all(_tiles(case, device, name) for name in LAUNCHES)
        else "16 rows do not fit in a block's shared memory"
    )


def config(case, device):
    """The most rows that leave every multiprocessor a block."""
    B, H, T = case.size("B", "H", "T")
    own = {}
    for name in LAUNCHES:
        fitting = _tiles(case, device, name)
        enough = (t for t in fitting if B * H * -(-T // t["BLOCK_M"]) >= multiprocessors(device))
        own |= prefixed(name, next(enough, fitting[-1]))
    return own


def _tiles(case, device, name):
    """The configs of a launch that fit, with the most rows first. What a warp sums takes registers, of tokens twice as many."""
    wide = attention.padded(case.sizes["D"]) * (2 if name == "tokens" else 1)
    most = 64 if wide <= 64 else 32 if wide <= 128 else 16
    keys = most if case.itemsize == 2 else min(most, 32)
    tiles = ({"BLOCK_M": rows, "BLOCK_N": keys} for rows in ROWS)
    return [tile for tile in tiles if _misfit(case, device, tile) is None]


def _tile(config):
    return attention.AttentionTile(1, config["BLOCK_M"] // 16, 1, config["BLOCK_N"])


def _memory(case, tile):
    """Shared memory of a block: its rows of two tensors, and stages of two."""
    return tile.memory(case, 2) + tile.rows * tile.pitch(case)


def _misfit(case, device, config):
    if reason := not_one_of("BLOCK_M", config["BLOCK_M"], ROWS) or not_one_of(
        "BLOCK_N", config["BLOCK_N"], (16, 32, 64)
    ):
        return reason
    return too_large(_memory(case, _tile(config)), device)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    return next(filter(None, (_misfit(case, device, of_launch(name, config)) for name in LAUNCHES)), None)


def forward_launch(case, device):
    """flash with the logarithms."""
    dtypes = *(case.dtype,) * 3, "int32", case.dtype, "float32"
    return attention.flash(FILE, case, attention.flash_config(case, device), dtypes, kernel="flash_logarithms")


def launches(case, config):
    """`query_gradients` and `token_gradients`."""
    B, H, T = case.size("B", "H", "T")
    d = case.dtype
    dtypes = {
        "queries": (d, d, d, "int32", d, "float32", d, "float32", d),
        "tokens": (d, d, d, "int32", "float32", d, "float32", d, d),
    }
    kernels = {"queries": "query_gradients", "tokens": "token_gradients"}
    tiles = {name: _tile(of_launch(name, config)) for name in LAUNCHES}
    return tuple(
        Launch(
            instance(FILE, kernels[name], *attention.head(case), tile.WM, tile.KEYS),
            B * H * -(-T // tile.rows), tile.threads, _memory(case, tile), dtypes=dtypes[name],
        )
        for name, tile in tiles.items()
    )  # fmt: skip


def build(case, device, config):
    """(forward, backward); y and the logarithms (B, H, T) are kept beside the inputs."""
    import torch

    B, H, T, D = case.size("B", "H", "T", "D")
    flash = forward_launch(case, device).bind()
    queries, tokens = (launch.bind() for launch in launches(case, config))
    scale, root = np.float32(math.log2(math.e) / math.sqrt(D)), np.float32(math.sqrt(D))

    def forward(q, k, v, n_padd):
        y, logarithms = torch.empty_like(q), q.new_empty((B, H, T), dtype=torch.float32)
        flash(q, k, v, n_padd, y, logarithms, H, T, D, scale)
        return y, (q, k, v, n_padd, y, logarithms)

    def backward(residuals, dy):
        q, k, v, n_padd, y, logarithms = residuals
        dq, dk, dv, deltas = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(logarithms)
        queries(q, k, v, n_padd, y, logarithms, dy, deltas, dq, H, T, D, scale, root)
        tokens(q, k, v, n_padd, logarithms, dy, deltas, dk, dv, H, T, D, scale, root)
        return dq, dk, dv

    return forward, backward
