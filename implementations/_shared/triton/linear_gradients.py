"""The gradients of x @ W + b in Triton in one launch, given dz (M, N), the gradient by its result.

    inputs_tile     a tile of dx = dz @ Wᵀ; what a kernel adds to it comes from the kernel.
    weights_tile    a tile of dW = xᵀ @ dz. Where dW has few tiles and M is large, SPLIT programs share a tile's rows of the batch:
                    each stores its sums in a part of its own, and `sum_parts`, another launch, adds them up in order.
    bias_sums       some columns of db, the sum of dz over the batch, from loads of their own (lola's _triton_kernels.py says why a dot
                    and a sum share none).

Every program is of one of these kinds, `kind_of` says of which. Together they leave no multiprocessor idle that one product would:
the 64 tiles of dx (1024×1024, 4096 deep) take as long as the 256 of dW (1024×4096, 1024 deep), which find room beside them.
N are the columns of dz, K those of x, and compile-time constants. M may change from call to call; whether a tile divides it is compiled.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import rows_are_aligned
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.matmul import grouped
from implementations._shared.triton.product import GROUP, product, product_misfit
from implementations._shared.triton.schedule import choose
from implementations._shared.triton.sums import column_sums

SUM_ROWS, SUM_COLUMNS = tl.constexpr(256), tl.constexpr(32)  # of dz that `bias_sums` has in registers
DX, DW = ("DX_M", "DX_N", "DX_K"), ("DW_M", "DW_N", "DW_K")  # the sides of both tiles: rows, columns and what is summed


def config(case, device, K, N, most_parts=1, widest=256):
    """The tunables of the launch for x (M, K) and dz (M, N); `widest` are the columns of dx's tile that leave registers for what a
    kernel adds to it."""
    return choose(case, device, K, N, rows_are_aligned(case, K, N), most_parts, widest)


def fits(case, device, config, K, N):
    """Why the launch cannot have this config, or None."""
    aligned = rows_are_aligned(case, K, N)
    return product_misfit(case, device, DX, config, aligned) or product_misfit(case, device, DW, config, aligned)


def layer(case, config, K, N, bias):
    """(the compile-time arguments, the programs) of the launch. What takes longer begins first."""
    M, parts, nk = case.sizes["M"], config.get("SPLIT", 1), case.options["w_layout"] == "nk"
    rows, columns = (N, K) if nk else (K, N)  # of dW as it is stored
    options = {"K": K, "N": N, "NK": nk, "PRECISION": case.precision, "SPLIT": parts}
    options["EVEN_M"] = M % (config["DW_K"] * parts) == 0
    options["DX_FIRST"] = N * config["DX_M"] * config["DX_N"] * parts >= M * config["DW_M"] * config["DW_N"]
    tiles = triton.cdiv(M, config["DX_M"]) * triton.cdiv(K, config["DX_N"])
    tiles += triton.cdiv(rows, config["DW_M"]) * triton.cdiv(columns, config["DW_N"]) * parts
    return options, tiles + (triton.cdiv(N, SUM_COLUMNS.value) * parts if bias else 0)


def launch(case, config, K, N, bias=True, below=False):
    """The launch for dz, W, x and M: → dx, dW and db, or with config's SPLIT → dx and parts. `below` says that x is the result of a
    ReLU, whose gradient dx is then."""
    pointer = TYPES[case.dtype]
    options, programs = layer(case, config, K, N, bias)
    signature = {"dz": pointer, "W": pointer, "x": pointer, "M": "i32", "dx": pointer}
    if config.get("SPLIT", 1) > 1:
        kernel, signature = with_parts, signature | {"parts": "*fp32"}
    elif bias:
        kernel, signature = with_bias, signature | {"dW": pointer, "db": pointer}
    else:
        kernel, signature = without_bias, signature | {"dW": pointer}
    return launch_with(config, kernel, signature, options | {"BIAS": bias, "BELOW": below}, (programs,))


def parts_launch(case, config, K, N):
    """`sum_parts`, behind a `launch` with SPLIT: parts → dW and db."""
    pointer = TYPES[case.dtype]
    options = {"WEIGHTS": K * N, "N": N, "SPLIT": config["SPLIT"]}
    tile = {"BLOCK": 512, "num_warps": 4}
    grid = (triton.cdiv((K + 1) * N, tile["BLOCK"]),)
    return launch_with(tile, sum_parts, {"parts": "*fp32", "dW": pointer, "db": pointer}, options, grid)


@triton.jit
def kind_of(
    M, K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, DX_M: tl.constexpr, DX_N: tl.constexpr, DW_M: tl.constexpr,
    DW_N: tl.constexpr, SPLIT: tl.constexpr, DX_FIRST: tl.constexpr,
):  # fmt: skip
    """(0, its place) of a program that has a tile of dx, (1, its place) of one of dW, (2, its place) of those behind them."""
    pid = tl.program_id(0)
    of_dx = tl.cdiv(M, DX_M) * tl.cdiv(K, DX_N)
    of_dW = tl.cdiv(N if NK else K, DW_M) * tl.cdiv(K if NK else N, DW_N) * SPLIT
    if DX_FIRST:
        kind = tl.where(pid < of_dx, 0, tl.where(pid < of_dx + of_dW, 1, 2))
        place = pid - tl.where(pid < of_dx, 0, of_dx)
    else:
        kind = tl.where(pid < of_dW, 1, tl.where(pid < of_dx + of_dW, 0, 2))
        place = pid - tl.where(pid < of_dW, 0, of_dW)
    return kind, tl.where(kind == 2, pid - of_dx - of_dW, place)


@triton.jit
def inputs_tile(
    dz, W, M, place,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    DX_M: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr,
):  # fmt: skip
    """A tile of dz @ Wᵀ in float32, with its rows and columns, both int64, and which of each are inside."""
    row_block, column_block = grouped(place, tl.cdiv(M, DX_M), tl.cdiv(K, DX_N), GROUP)
    rows = row_block.to(tl.int64) * DX_M + tl.arange(0, DX_M)
    columns = column_block.to(tl.int64) * DX_N + tl.arange(0, DX_N)
    inside = (columns < K) | (K % DX_N == 0)  # a constant where the tile divides K
    W_K: tl.constexpr = 1 if NK else N
    W_N: tl.constexpr = K if NK else 1
    # rows past M read the last row again, and are not stored: their loads need no mask
    every = tl.full([DX_M], True, tl.int1)
    acc = product(
        dz, W, tl.minimum(rows, M - 1), columns, every, inside, 0, N, N, N, 1, W_N, W_K, PRECISION, DX_M, DX_N, DX_K, N % DX_K == 0
    )  # fmt: skip
    return acc, rows, columns, rows < M, inside


@triton.jit
def share_of(M, part, STEP: tl.constexpr, SPLIT: tl.constexpr):
    """(first, behind) of the rows of the batch that a part sums, in steps of STEP."""
    if SPLIT == 1:
        first, behind = 0, M
    else:
        each = tl.cdiv(tl.cdiv(M, STEP), SPLIT) * STEP
        first, behind = part * each, tl.minimum(part * each + each, M)
    return first, behind


@triton.jit
def weights_tile(
    x, dz, M, dW, place,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    DW_M: tl.constexpr, DW_N: tl.constexpr, DW_K: tl.constexpr, SPLIT: tl.constexpr, EVEN_M: tl.constexpr,
):  # fmt: skip
    """Stores a tile of dW, or a part of one: as it is stored, so that nothing is transposed."""
    if NK:
        left, right = dz, x
    else:
        left, right = x, dz
    ROWS: tl.constexpr = N if NK else K
    COLUMNS: tl.constexpr = K if NK else N
    part = place % SPLIT
    row_block, column_block = grouped(place // SPLIT, tl.cdiv(ROWS, DW_M), tl.cdiv(COLUMNS, DW_N), GROUP)
    rows = row_block.to(tl.int64) * DW_M + tl.arange(0, DW_M)
    columns = column_block.to(tl.int64) * DW_N + tl.arange(0, DW_N)
    rows_inside, inside = (rows < ROWS) | (ROWS % DW_M == 0), (columns < COLUMNS) | (COLUMNS % DW_N == 0)
    first, behind = share_of(M, part, DW_K, SPLIT)
    acc = product(
        left, right, rows, columns, rows_inside, inside, first, behind, M, 1, ROWS, COLUMNS, 1, PRECISION, DW_M, DW_N, DW_K, EVEN_M
    )  # fmt: skip
    dW += part.to(tl.int64) * ((K + 1) * N)
    at = rows[:, None] * COLUMNS + columns[None, :]
    tl.store(dW + at, acc.to(dW.dtype.element_ty), mask=rows_inside[:, None] & inside[None, :])


@triton.jit
def bias_sums(dz, M, db, place, K: tl.constexpr, N: tl.constexpr, DW_K: tl.constexpr, SPLIT: tl.constexpr):
    """Stores SUM_COLUMNS of db, or a part of them."""
    part = place % SPLIT
    columns = (place // SPLIT) * SUM_COLUMNS + tl.arange(0, SUM_COLUMNS)
    inside = columns < N
    first, behind = share_of(M, part, DW_K, SPLIT)
    sums = column_sums(dz, columns, inside, first, behind, N, SUM_ROWS, SUM_COLUMNS)
    db += part.to(tl.int64) * ((K + 1) * N)
    tl.store(db + columns, sums.to(db.dtype.element_ty), mask=inside)


@triton.jit
def gradients(
    dz, W, x, M, dx, dW, db,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, BIAS: tl.constexpr, BELOW: tl.constexpr,
    EVEN_M: tl.constexpr, DX_FIRST: tl.constexpr, DX_M: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr,
    DW_M: tl.constexpr, DW_N: tl.constexpr, DW_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The body of the launches below."""
    kind, place = kind_of(M, K, N, NK, DX_M, DX_N, DW_M, DW_N, SPLIT, DX_FIRST)
    if kind == 0:
        acc, rows, columns, rows_inside, inside = inputs_tile(dz, W, M, place, K, N, NK, PRECISION, DX_M, DX_N, DX_K)
        at, mask = rows[:, None] * K + columns[None, :], rows_inside[:, None] & inside[None, :]
        gradient = acc.to(dx.dtype.element_ty)
        if BELOW:
            gradient = tl.where(tl.load(x + at, mask=mask, other=0.0) > 0, gradient, 0.0)
        tl.store(dx + at, gradient, mask=mask)
    elif kind == 1:
        weights_tile(x, dz, M, dW, place, K, N, NK, PRECISION, DW_M, DW_N, DW_K, SPLIT, EVEN_M)
    elif BIAS:
        bias_sums(dz, M, db, place, K, N, DW_K, SPLIT)


@triton.jit(do_not_specialize=["M"])
def with_bias(
    dz, W, x, M, dx, dW, db,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, BIAS: tl.constexpr, BELOW: tl.constexpr,
    EVEN_M: tl.constexpr, DX_FIRST: tl.constexpr, DX_M: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr,
    DW_M: tl.constexpr, DW_N: tl.constexpr, DW_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """dx (M, K), dW as W is stored, db (N,)."""
    gradients(
        dz, W, x, M, dx, dW, db, K, N, NK, PRECISION, BIAS, BELOW, EVEN_M, DX_FIRST,
        DX_M, DX_N, DX_K, DW_M, DW_N, DW_K, SPLIT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def without_bias(
    dz, W, x, M, dx, dW,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, BIAS: tl.constexpr, BELOW: tl.constexpr,
    EVEN_M: tl.constexpr, DX_FIRST: tl.constexpr, DX_M: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr,
    DW_M: tl.constexpr, DW_N: tl.constexpr, DW_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """dx (M, K), dW as W is stored."""
    gradients(
        dz, W, x, M, dx, dW, dW, K, N, NK, PRECISION, BIAS, BELOW, EVEN_M, DX_FIRST,
        DX_M, DX_N, DX_K, DW_M, DW_N, DW_K, SPLIT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def with_parts(
    dz, W, x, M, dx, parts,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, BIAS: tl.constexpr, BELOW: tl.constexpr,
    EVEN_M: tl.constexpr, DX_FIRST: tl.constexpr, DX_M: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr,
    DW_M: tl.constexpr, DW_N: tl.constexpr, DW_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """dx (M, K), and parts (SPLIT, K * N + N): of dW, and behind them of db."""
    gradients(
        dz, W, x, M, dx, parts, parts + K * N, K, N, NK, PRECISION, BIAS, BELOW, EVEN_M, DX_FIRST,
        DX_M, DX_N, DX_K, DW_M, DW_N, DW_K, SPLIT,
    )  # fmt: skip


@triton.jit
def sum_parts(parts, dW, db, WEIGHTS: tl.constexpr, N: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK elements of dW and db, each the sum of its parts in their order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WEIGHTS + N
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(SPLIT):
        total += tl.load(parts + part * (WEIGHTS + N) + at, mask=inside, other=0.0)
    tl.store(dW + at, total.to(dW.dtype.element_ty), mask=at < WEIGHTS)
    tl.store(db + at - WEIGHTS, total.to(db.dtype.element_ty), mask=inside & (at >= WEIGHTS))
