"""lola's backward modes in Triton: what triton.py and jax_triton.py launch there, and the choice of tiles.

Forward, two launches, which leave n = LN(x) and z = n @ W + b behind:

    normalise   a program has a row: n (M, K), and rstd (M,) in float32.
    linear      a tile of z and y; the programs of the first rows store the column sums of W (N,) as well.

Backward, two:

    rows        a program has a row: dz = dy * act'(z), and the two sums of LayerNorm's gradient without a pass over dn = dz @ Wᵀ:
                sum of dn = dz . colsum(W), and sum of dn * n = dz . (z - b).
    products    dx, dW = nᵀ @ dz and db (_shared/triton/linear_gradients.py), with dx = rstd * (dn - sum of dn / K - n * sum of dn * n / K).
"""

import triton
import triton.language as tl

from implementations._shared.gpu import rows_are_aligned
from implementations._shared.triton import linear_gradients
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.layer import layer_tile
from implementations._shared.triton.limits import first_reason, misfit
from implementations._shared.triton.linear_gradients import bias_sums, inputs_tile, kind_of, weights_tile
from implementations._shared.triton.product import tile
from implementations._shared.triton.slopes import slope

EPS = tl.constexpr(1e-5)


def config(case, device):
    """The tunables of both launches of backward."""
    K, N = case.size("K", "N")
    block = min(2048, max(64, triton.next_power_of_2(N)))
    rows = {"BLOCK": block, "num_warps": max(1, min(8, block // 256))}
    return prefixed({"rows": rows, "products": linear_gradients.config(case, device, K, N, widest=128)})


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own = by_launch(config)
    first = misfit(device, own["rows"], values=4 * own["rows"]["BLOCK"])
    second = linear_gradients.fits(case, device, own["products"], *case.size("K", "N"))
    return first_reason({"rows": first, "products": second})


def forward_launches(case, device):
    """`normalise` and `linear`."""
    M, K, N = case.size("M", "K", "N")
    pointer, own = TYPES[case.dtype], tile(case, device, M, N, rows_are_aligned(case, K, N))
    block = min(4096, max(64, triton.next_power_of_2(K)))
    signature = {"x": pointer, "n": pointer, "rstd": "*fp32"}
    first = launch_with(
        {"num_warps": max(1, min(8, block // 256))}, normalise, signature, {"K": K, "BLOCK": block}, (M,)
    )
    signature = {"n": pointer, "W": pointer, "b": pointer, "M": "i32", "z": pointer, "y": pointer, "colsum": "*fp32"}
    options = {"K": K, "N": N, "NK": case.options["w_layout"] == "nk", "PRECISION": case.precision}
    grid = (triton.cdiv(M, own["BLOCK_M"]) * triton.cdiv(N, own["BLOCK_N"]) + triton.cdiv(N, own["BLOCK_N"]),)
    return first, launch_with(own, linear, signature, options | {"ACTIVATION": case.options["activation"]}, grid)


def backward_launches(case, config):
    """`rows` and `products`."""
    M, K, N = case.size("M", "K", "N")
    pointer, own = TYPES[case.dtype], by_launch(config)
    signature = {"z": pointer, "b": pointer, "colsum": "*fp32", "dy": pointer, "dz": pointer, "sums": "*fp32"}
    first = launch_with(own["rows"], rows, signature, {"N": N, "ACTIVATION": case.options["activation"]}, (M,))
    signature = {"dz": pointer, "W": pointer, "n": pointer, "rstd": "*fp32", "sums": "*fp32", "M": "i32"}
    signature |= {"dx": pointer, "dW": pointer, "db": pointer}
    options, programs = linear_gradients.layer(case, own["products"], K, N, bias=True)
    return first, launch_with(own["products"], products, signature, options, (programs,))


@triton.jit
def normalise(x, n, rstd, K: tl.constexpr, BLOCK: tl.constexpr):
    """One row: the mean first, then the deviations from it."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    x += row * K
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        total += tl.load(x + start + k, mask=start + k < K, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / K
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        deviation = tl.load(x + start + k, mask=start + k < K, other=0.0).to(tl.float32) - mean
        squares += tl.where(start + k < K, deviation * deviation, 0.0)
    scale = tl.rsqrt(tl.sum(squares, 0) / K + EPS)
    for start in range(0, K, BLOCK):
        normed = (tl.load(x + start + k, mask=start + k < K, other=0.0).to(tl.float32) - mean) * scale
        tl.store(n + row * K + start + k, normed.to(n.dtype.element_ty), mask=start + k < K)
    tl.store(rstd + row, scale)


@triton.jit(do_not_specialize=["M"])
def linear(
    n, W, b, M, z, y, colsum,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of z and of y, which is the activation of z as it is stored; behind all tiles, BLOCK_N column sums of W."""
    W_K: tl.constexpr = 1 if NK else N
    W_N: tl.constexpr = K if NK else 1
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    place = tl.program_id(0)
    if place < tiles:
        acc, at, mask = layer_tile(n, W, b, M, place, K, N, NK, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
        stored = acc.to(z.dtype.element_ty)
        tl.store(z + at, stored, mask=mask)
        tl.store(y + at, activate(stored.to(tl.float32), ACTIVATION).to(y.dtype.element_ty), mask=mask)
    else:
        columns = (place - tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (columns < N) | (N % BLOCK_N == 0)
        total = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
        k = tl.arange(0, BLOCK_K).to(tl.int64)
        for start in range(0, K, BLOCK_K):
            at = (start + k)[:, None] * W_K + columns[None, :] * W_N
            mask = ((start + k < K) | (K % BLOCK_K == 0))[:, None] & inside[None, :]
            total += tl.load(W + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(colsum + columns, tl.sum(total, 0), mask=inside)


@triton.jit
def rows(z, b, colsum, dy, dz, sums, N: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """One row; sums (M, 2) of dn and of dn * n."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    total, along = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        columns, inside = start + place, start + place < N
        before = tl.load(z + row * N + columns, mask=inside, other=0.0).to(tl.float32)
        behind = tl.load(dy + row * N + columns, mask=inside, other=0.0).to(tl.float32)
        stored = (behind * slope(before, ACTIVATION)).to(dz.dtype.element_ty)
        tl.store(dz + row * N + columns, stored, mask=inside)
        through = stored.to(tl.float32)
        total += through * tl.load(colsum + columns, mask=inside, other=0.0)
        along += through * (before - tl.load(b + columns, mask=inside, other=0.0).to(tl.float32))
    tl.store(sums + 2 * row, tl.sum(total, 0))
    tl.store(sums + 2 * row + 1, tl.sum(along, 0))


@triton.jit(do_not_specialize=["M"])
def products(
    dz, W, n, rstd, sums, M, dx, dW, db,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, EVEN_M: tl.constexpr, DX_FIRST: tl.constexpr,
    DX_M: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr, DW_M: tl.constexpr, DW_N: tl.constexpr, DW_K: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """A tile of dx (M, K), a tile of dW, or some of db (N,)."""
    kind, place = kind_of(M, K, N, NK, DX_M, DX_N, DW_M, DW_N, SPLIT, DX_FIRST)
    if kind == 0:
        dn, rows, columns, rows_inside, inside = inputs_tile(dz, W, M, place, K, N, NK, PRECISION, DX_M, DX_N, DX_K)
        total = tl.load(sums + 2 * rows, mask=rows_inside, other=0.0) / K
        along = tl.load(sums + 2 * rows + 1, mask=rows_inside, other=0.0) / K
        scale = tl.load(rstd + rows, mask=rows_inside, other=0.0)
        at, mask = rows[:, None] * K + columns[None, :], rows_inside[:, None] & inside[None, :]
        normed = tl.load(n + at, mask=mask, other=0.0).to(tl.float32)
        gradient = scale[:, None] * (dn - total[:, None] - normed * along[:, None])
        tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=mask)
    elif kind == 1:
        weights_tile(n, dz, M, dW, place, K, N, NK, PRECISION, DW_M, DW_N, DW_K, SPLIT, EVEN_M)
    else:
        bias_sums(dz, M, db, place, K, N, DW_K, SPLIT)
