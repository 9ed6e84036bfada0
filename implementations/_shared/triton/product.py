"""A matrix product of factors that are stored either way, as layers that are trained need it."""

import functools

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee
from implementations._shared.triton.limits import misfit, most_stages
from implementations._shared.triton.matmul import multiply, narrowed, padded

GROUP = tl.constexpr(8)  # rows of blocks that keep their factors in L2 together


def slab(case, aligned):
    """The K that a program multiplies at a time: 128 bytes, those of one swizzle, where tensor cores do it."""
    return 16 if is_ieee(case) else 128 // case.itemsize if aligned else 32


def tile(case, device, rows, columns, aligned):
    """The tunables of one product for so many rows and columns of the result; `aligned` says whether the rows of both factors begin at
    multiples of 16 bytes.

    Warpgroups multiply 64 rows. Triton 3.6 on Hopper computes wrongly with one of them where rows start anywhere (fused_mlp): there
    tiles of 32 rows go without.
    """
    BLOCK_M = min(128 if aligned else 32, padded(rows))
    BLOCK_N = min(128 if aligned else 64, padded(columns))
    BLOCK_N = narrowed(BLOCK_N, min(BLOCK_N, 32), rows, BLOCK_M, columns, device)
    num_warps = 8 if BLOCK_M * BLOCK_N >= 128 * 128 else 4
    chosen = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": slab(case, aligned), "num_warps": num_warps}
    sides = BLOCK_M, BLOCK_N, chosen["BLOCK_K"]
    return chosen | {"num_stages": most_stages(device, 4, functools.partial(product_bytes, case, *sides))}


def product_bytes(case, rows, columns, k, num_stages):
    """Shared memory of `product`: a slab of both factors a stage, and some for the conversion of the result."""
    return num_stages * (rows + columns) * k * case.itemsize + (8 << 10)


def product_misfit(case, device, sides, config, aligned):
    """Why a product whose tunables of rows, columns and K have these names cannot have a config, or None."""
    rows, columns, k = (config[side] for side in sides)
    one = rows >= 64 and config["num_warps"] * 16 <= rows
    if one and not aligned and device.capability[0] == 9 and not is_ieee(case):
        return (
            f"{sides[0]}={rows} with num_warps={config['num_warps']}: "
            "Triton computes wrongly with rows that start anywhere; 32 is right"
        )
    shared = product_bytes(case, rows, columns, k, config["num_stages"])
    return misfit(device, config, sides, rows * columns, shared)


@triton.jit
def product(
    a, b, rows, columns, rows_inside, columns_inside, first, behind, K,
    A_ROW: tl.constexpr, A_K: tl.constexpr, B_K: tl.constexpr, B_COLUMN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """These rows and columns, both int64, of a (M, K) @ b (K, N) in float32, of K those from `first`, a multiple of BLOCK_K, up to
    `behind`. The strides of both factors are in elements, so that either may be stored transposed. No mask is left where what is inside
    are constants and EVEN says that BLOCK_K divides K."""
    k = first + tl.arange(0, BLOCK_K).to(tl.int64)
    a_tile = a + (rows[:, None] * A_ROW + k[None, :] * A_K)
    b_tile = b + (k[:, None] * B_K + columns[None, :] * B_COLUMN)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(first, behind, BLOCK_K):
        inside = (start + tl.arange(0, BLOCK_K) < K) | EVEN
        a_slab = tl.load(a_tile, mask=rows_inside[:, None] & inside[None, :], other=0.0)
        b_slab = tl.load(b_tile, mask=inside[:, None] & columns_inside[None, :], other=0.0)
        acc = multiply(a_slab, b_slab, acc, PRECISION)
        a_tile += BLOCK_K * A_K
        b_tile += BLOCK_K * B_K
    return acc
