"""The gradients of x @ W + b in Triton, given dz (M, N), the gradient by its result: what the backward modes of several kernels launch.

    inputs_tile     a tile of dx = dz @ Wᵀ.
    weights_tile    a tile of dW = xᵀ @ dz; `weights_and_bias_tile`, whose programs of the first rows sum dz over the batch as well, from loads
                    of their own (lola's _triton_kernels.py says why a dot and a sum share none).

N are the columns of dz, K those of x, and compile-time constants. M may change from call to call without compiling anew.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import rows_are_aligned
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.product import product, product_misfit, tile


def configs(case, device, columns):
    """The tunables of both launches, by name, where dz has so many columns."""
    M, K = case.size("M", "K")
    aligned = rows_are_aligned(case, K, columns)
    return {"dx": tile(case, device, M, K, aligned), "dW": tile(case, device, K, columns, aligned)}


def misfits(case, device, own, columns):
    """Why the configs of both launches cannot run, by name, None where they can."""
    aligned = rows_are_aligned(case, case.sizes["K"], columns)
    return {name: product_misfit(case, device, own[name], aligned) for name in ("dx", "dW")}


def options(case, columns):
    """The compile-time arguments of both."""
    return {"K": case.sizes["K"], "N": columns, "NK": case.options["w_layout"] == "nk", "PRECISION": case.precision}


def tiles(config, rows, columns):
    """The grid of a tile a program."""
    return triton.cdiv(rows, config["BLOCK_M"]), triton.cdiv(columns, config["BLOCK_N"])


def inputs_launch(case, config, columns):
    """`inputs_tile`."""
    pointer = TYPES[case.dtype]
    signature = {"dz": pointer, "W": pointer, "M": "i32", "dx": pointer}
    return launch_with(config, inputs_tile, signature, options(case, columns), tiles(config, *case.size("M", "K")))


def weights_launch(case, config, columns, bias):
    """`weights_and_bias_tile`, or without a `bias` `weights_tile`."""
    pointer = TYPES[case.dtype]
    signature = {"x": pointer, "dz": pointer, "M": "i32", "dW": pointer} | ({"db": pointer} if bias else {})
    kernel = weights_and_bias_tile if bias else weights_tile
    return launch_with(config, kernel, signature, options(case, columns), tiles(config, case.sizes["K"], columns))


@triton.jit
def tile_place(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The rows and columns of a program's tile."""
    first_row, first_column = tl.program_id(0).to(tl.int64) * BLOCK_M, tl.program_id(1).to(tl.int64) * BLOCK_N
    return first_row + tl.arange(0, BLOCK_M), first_column + tl.arange(0, BLOCK_N)


@triton.jit(do_not_specialize=["M"])
def inputs_tile(
    dz, W, M, dx,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of dx (M, K): BLOCK_N columns of it, BLOCK_K of dz at a time."""
    rows, columns = tile_place(BLOCK_M, BLOCK_N)
    W_K: tl.constexpr = 1 if NK else N
    W_N: tl.constexpr = K if NK else 1
    acc = product(dz, W, rows, columns, M, K, N, N, 1, W_N, W_K, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    inside = (rows < M)[:, None] & (columns < K)[None, :]
    tl.store(dx + rows[:, None] * K + columns[None, :], acc.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def store_weights(
    x, dz, M, dW,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of dW: BLOCK_M of its K rows and BLOCK_N of its N columns, BLOCK_K rows of the batch at a time."""
    rows, columns = tile_place(BLOCK_M, BLOCK_N)
    acc = product(x, dz, rows, columns, K, N, M, 1, K, N, 1, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    if NK:
        at = columns[None, :] * K + rows[:, None]
    else:
        at = rows[:, None] * N + columns[None, :]
    tl.store(dW + at, acc.to(dW.dtype.element_ty), mask=(rows < K)[:, None] & (columns < N)[None, :])


@triton.jit(do_not_specialize=["M"])
def weights_tile(
    x, dz, M, dW,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of dW."""
    store_weights(x, dz, M, dW, K, N, NK, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit(do_not_specialize=["M"])
def weights_and_bias_tile(
    x, dz, M, dW, db,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of dW, and some of db (N,)."""
    store_weights(x, dz, M, dW, K, N, NK, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    if tl.program_id(0) == 0:
        _, columns = tile_place(BLOCK_M, BLOCK_N)
        total = tl.zeros([BLOCK_N], tl.float32)
        m = tl.arange(0, BLOCK_K).to(tl.int64)
        for start in range(0, M, BLOCK_K):
            slab = dz + (start + m)[:, None] * N + columns[None, :]
            inside = (start + m < M)[:, None] & (columns < N)[None, :]
            total += tl.sum(tl.load(slab, mask=inside, other=0.0).to(tl.float32), 0)
        tl.store(db + columns, total.to(db.dtype.element_ty), mask=columns < N)
