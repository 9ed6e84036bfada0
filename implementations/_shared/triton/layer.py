"""A linear layer's forward pass in Triton as backward modes need it: its result, or what is before the activation, stays in memory."""

import triton
import triton.language as tl

from implementations._shared.gpu import rows_are_aligned
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.matmul import grouped
from implementations._shared.triton.product import GROUP, product, tile


def launch(case, device, K, N, activation):
    """`layer`: x (M, K), W, b, M → y (M, N)."""
    pointer, M = TYPES[case.dtype], case.sizes["M"]
    own = tile(case, device, M, N, rows_are_aligned(case, K, N))
    signature = dict.fromkeys(("x", "W", "b"), pointer) | {"M": "i32", "y": pointer}
    options = {
        "K": K,
        "N": N,
        "NK": case.options["w_layout"] == "nk",
        "PRECISION": case.precision,
        "ACTIVATION": activation,
    }
    grid = (triton.cdiv(M, own["BLOCK_M"]) * triton.cdiv(N, own["BLOCK_N"]),)
    return launch_with(own, layer, signature, options, grid)


@triton.jit
def layer_tile(
    x, W, b, M, place,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of x @ W + b in float32, the places of its elements in (M, N), and which are inside."""
    row_block, column_block = grouped(place, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column_block.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (columns < N) | (N % BLOCK_N == 0)
    W_K: tl.constexpr = 1 if NK else N
    W_N: tl.constexpr = K if NK else 1
    # rows past M read the last row again, and are not stored: their loads need no mask
    every = tl.full([BLOCK_M], True, tl.int1)
    acc = product(
        x, W, tl.minimum(rows, M - 1), columns, every, inside, 0, K, K, K, 1, W_K, W_N, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K,
        K % BLOCK_K == 0,
    )  # fmt: skip
    acc += tl.load(b + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    return acc, rows[:, None] * N + columns[None, :], (rows < M)[:, None] & inside[None, :]


@triton.jit(do_not_specialize=["M"])
def layer(
    x, W, b, M, y,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of y."""
    z, at, mask = layer_tile(x, W, b, M, tl.program_id(0), K, N, NK, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    tl.store(y + at, activate(z, ACTIVATION).to(y.dtype.element_ty), mask=mask)
