"""lola's backward modes in Triton: what triton.py and jax_triton.py launch there, and the choice of tiles.

Forward, two launches, which leave n = LN(x) and z = n @ W + b behind:

    normalise   a program has a row: n (M, K), and rstd (M,) in float32.
    linear      a tile of z and y; the programs of the first rows store the column sums of W (N,) as well.

Backward, three:

    rows        a program has a row: dz = dy * act'(z), and the two sums of LayerNorm's gradient without a pass over dn = dz @ Wᵀ:
                sum of dn = dz . colsum(W), and sum of dn * n = dz . (z - b).
    dx          a tile of rstd * (dn - sum of dn / K - n * sum of dn * n / K).
    dW          a tile of nᵀ @ dz, and db (_shared/triton/linear_gradients.py).
"""

import triton
import triton.language as tl

from implementations._shared.gpu import rows_are_aligned
from implementations._shared.triton import linear_gradients
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit
from implementations._shared.triton.linear_gradients import tile_place, tiles
from implementations._shared.triton.product import product, tile
from implementations._shared.triton.slopes import slope

EPS = tl.constexpr(1e-5)


def config(case, device):
    """The tunables of the three launches of backward."""
    N = case.sizes["N"]
    block = min(2048, max(64, triton.next_power_of_2(N)))
    rows = {"BLOCK": block, "num_warps": max(1, min(8, block // 256))}
    return prefixed({"rows": rows} | linear_gradients.configs(case, device, N))


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own = by_launch(config)
    first = {"rows": misfit(device, own["rows"], values=4 * own["rows"]["BLOCK"])}
    return first_reason(first | linear_gradients.misfits(case, device, own, case.sizes["N"]))


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
    options = linear_gradients.options(case, N) | {"ACTIVATION": case.options["activation"]}
    return first, launch_with(own, linear, signature, options, tiles(own, M, N))


def backward_launches(case, config):
    """`rows`, `dx` and `dW`."""
    M, K, N = case.size("M", "K", "N")
    pointer, own = TYPES[case.dtype], by_launch(config)
    signature = {"z": pointer, "b": pointer, "colsum": "*fp32", "dy": pointer, "dz": pointer, "sums": "*fp32"}
    first = launch_with(own["rows"], rows, signature, {"N": N, "ACTIVATION": case.options["activation"]}, (M,))
    signature = {"dz": pointer, "W": pointer, "n": pointer, "rstd": "*fp32", "sums": "*fp32", "M": "i32", "dx": pointer}
    options = linear_gradients.options(case, N)
    second = launch_with(own["dx"], dx_tile, signature, options, tiles(own["dx"], M, K))
    return first, second, linear_gradients.weights_launch(case, own["dW"], N, bias=True)


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
    """A tile of z and of y, which is the activation of z as it is stored."""
    rows, columns = tile_place(BLOCK_M, BLOCK_N)
    W_K: tl.constexpr = 1 if NK else N
    W_N: tl.constexpr = K if NK else 1
    acc = product(n, W, rows, columns, M, N, K, K, 1, W_K, W_N, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    acc += tl.load(b + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    stored = acc.to(z.dtype.element_ty)
    at, inside = rows[:, None] * N + columns[None, :], (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(z + at, stored, mask=inside)
    tl.store(y + at, activate(stored.to(tl.float32), ACTIVATION).to(y.dtype.element_ty), mask=inside)
    if tl.program_id(0) == 0:
        total = tl.zeros([BLOCK_N], tl.float32)
        k = tl.arange(0, BLOCK_K).to(tl.int64)
        for start in range(0, K, BLOCK_K):
            slab = W + (start + k)[:, None] * W_K + columns[None, :] * W_N
            total += tl.sum(
                tl.load(slab, mask=(start + k < K)[:, None] & (columns < N)[None, :], other=0.0).to(tl.float32), 0
            )
        tl.store(colsum + columns, total, mask=columns < N)


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
def dx_tile(
    dz, W, n, rstd, sums, M, dx,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of dx (M, K): BLOCK_N columns of it, BLOCK_K of dz at a time."""
    rows, columns = tile_place(BLOCK_M, BLOCK_N)
    W_K: tl.constexpr = 1 if NK else N
    W_N: tl.constexpr = K if NK else 1
    dn = product(dz, W, rows, columns, M, K, N, N, 1, W_N, W_K, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    total = tl.load(sums + 2 * rows, mask=rows < M, other=0.0) / K
    along = tl.load(sums + 2 * rows + 1, mask=rows < M, other=0.0) / K
    scale = tl.load(rstd + rows, mask=rows < M, other=0.0)
    at, inside = rows[:, None] * K + columns[None, :], (rows < M)[:, None] & (columns < K)[None, :]
    normed = tl.load(n + at, mask=inside, other=0.0).to(tl.float32)
    gradient = scale[:, None] * (dn - total[:, None] - normed * along[:, None])
    tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=inside)
