"""A matrix product of factors that are stored either way, as gradients need it, and the choice of its tiles."""

import functools

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee
from implementations._shared.triton.limits import misfit, most_stages
from implementations._shared.triton.matmul import multiply, narrowed


def tile(case, device, rows, columns, aligned):
    """The tunables of `product` for so many rows and columns of the result; `aligned` says whether the rows of both factors begin at
    multiples of 16 bytes.

    Warpgroups multiply 64 rows. Triton 3.6 on Hopper computes wrongly with one of them where rows start anywhere (fused_mlp): there
    tiles of 32 rows go without.
    """
    if not aligned:
        BLOCK_M, BLOCK_N, BLOCK_K, num_warps = 32, 64, 32, 4
    elif is_ieee(case):
        BLOCK_M, BLOCK_N, BLOCK_K, num_warps = (
            64,
            128,
            16,
            4,
        )  # without tensor cores a thread multiplies 8 × 8 from registers
    else:
        BLOCK_M, BLOCK_N, BLOCK_K, num_warps = 128, 128, 128 // case.itemsize, 8  # 128 bytes of one swizzle
    BLOCK_N = narrowed(BLOCK_N, 64, rows, BLOCK_M, columns, device)
    chosen = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "num_warps": num_warps}
    return chosen | {"num_stages": most_stages(device, 4, functools.partial(product_bytes, case, chosen))}


def product_bytes(case, tile, num_stages):
    """Shared memory of `product`: a slab of both factors a stage, and some for the conversion of the result."""
    return num_stages * (tile["BLOCK_M"] + tile["BLOCK_N"]) * tile["BLOCK_K"] * case.itemsize + (8 << 10)


def product_misfit(case, device, config, aligned):
    """Why `product` cannot have a config, or None."""
    one = config["BLOCK_M"] >= 64 and config["num_warps"] * 16 <= config["BLOCK_M"]
    if one and not aligned and device.capability[0] == 9 and not is_ieee(case):
        return f"BLOCK_M={config['BLOCK_M']} with num_warps={config['num_warps']}: Triton computes wrongly with rows that start anywhere; 32 is right"
    shared = product_bytes(case, config, config["num_stages"])
    return misfit(device, config, ("BLOCK_M", "BLOCK_N", "BLOCK_K"), config["BLOCK_M"] * config["BLOCK_N"], shared)


@triton.jit
def product(
    a, b, rows, columns, M, N, K,
    A_ROW: tl.constexpr, A_K: tl.constexpr, B_K: tl.constexpr, B_COLUMN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """These rows and columns, both int64, of a (M, K) @ b (K, N) in float32. The strides of both factors are in elements, so that either
    may be stored transposed."""
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_tile = a + rows[:, None] * A_ROW + k[None, :] * A_K
    b_tile = b + k[:, None] * B_K + columns[None, :] * B_COLUMN
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = start + k < K
        a_slab = tl.load(a_tile, mask=(rows < M)[:, None] & inside[None, :], other=0.0)
        b_slab = tl.load(b_tile, mask=inside[:, None] & (columns < N)[None, :], other=0.0)
        acc = multiply(a_slab, b_slab, acc, PRECISION)
        a_tile += BLOCK_K * A_K
        b_tile += BLOCK_K * B_K
    return acc
