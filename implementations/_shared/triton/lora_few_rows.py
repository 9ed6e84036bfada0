"""The backward pass of a linear layer with an adapter in Triton where there are few rows: one launch, for lora_backward.py.

dA and dx both need dxa = scale * dz @ Bᵀ, which another launch makes where there are many rows. All of a few rows are in one program
that sums them beside its own products, so that no program waits for another. Each has one of

    columns of x     dx = dz @ Wᵀ + dxa @ Aᵀ, and dA = xᵀ @ dxa: dz passes by once, and W and B beside it.
    a tile of dW     xᵀ @ dz, or its transpose where W is stored (N, K).
    columns of dz    dB = scale * (x @ A)ᵀ @ dz.
    more of them     db. A dot and a sum share no loads (lola's _triton_kernels.py says why).

Where there is an activation, dz = dy * act'(z) is computed wherever it is loaded.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import rows_are_aligned
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit, most_stages
from implementations._shared.triton.linear_gradients import DX
from implementations._shared.triton.matmul import multiply, narrowed, padded
from implementations._shared.triton.product import product_misfit
from implementations._shared.triton.schedule import choose
from implementations._shared.triton.slopes import slope

MOST_ROWS = 64  # a tile of warpgroups; where rows start anywhere they compute wrongly, and half of it is the most
LARGEST_RANK = 64  # whose sums leave registers
SUMS = tl.constexpr(128)  # columns of db of a program


def is_aligned(case):
    """Whether all rows begin at multiples of 16 bytes, those of A too: what Triton 3.6 on Hopper needs of a product by warpgroups."""
    return rows_are_aligned(case, *case.size("K", "N", "R"))


def takes(case):
    """Whether the layer has rows and a rank as few as these."""
    rows, rank = case.size("M", "R")
    return rows <= (MOST_ROWS if is_aligned(case) else MOST_ROWS // 2) and rank <= LARGEST_RANK


def config(case, device):
    """The tunables: columns of x and of what is summed, the tile of dW, columns of dB."""
    (K, N), aligned = case.size("K", "N"), is_aligned(case)
    chosen = choose(case, device, K, N, aligned, widest=128)
    own = {name: chosen[name] for name in ("DX_K", "DW_M", "DW_N", "num_warps")} | {"LOW": 64 if aligned else 32}
    if aligned and case.itemsize == 2:
        # tiles of dW so small that three programs share a multiprocessor with one of dx: 5 to 11 µs less on an H200
        own |= {"DX_K": 128, "DW_M": min(64, own["DW_M"]), "DW_N": min(128, own["DW_N"]), "num_warps": 4}
    # W passes by: as many of its parts at once as there are multiprocessors
    own["DX_N"] = narrowed(chosen["DX_N"] if aligned else 32, 32, 1, 1, K, device)
    return own | {"num_stages": most_stages(device, 4, lambda stages: shared_bytes(case, own, stages))}


def shared_bytes(case, config, num_stages):
    """A slab of dz, of W and of B a stage, and the last products' operands."""
    M, R = case.size("M", "R")
    stage = (padded(M) + config["DX_N"] + padded(R)) * config["DX_K"]
    last = (padded(M) + padded(R)) * max(config["DX_N"], config["DW_M"], config["DW_N"])
    return (num_stages * stage + last) * case.itemsize + (8 << 10)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    BLOCK_M, BLOCK_R, aligned = padded(case.sizes["M"]), padded(case.sizes["R"]), is_aligned(case)
    dx = config | {"DX_M": BLOCK_M}
    for side in ("DX_N", "DW_M", "LOW"):
        if config[side] >= 64 and not aligned:
            return f"{side}={config[side]}: rows that start anywhere have 32 at most"
    values = max(BLOCK_M * (config["DX_N"] + BLOCK_R), config["DW_M"] * config["DW_N"], BLOCK_R * config["LOW"])
    shared = shared_bytes(case, config, config["num_stages"])
    sides = ("DX_N", "DX_K", "DW_M", "DW_N", "LOW")
    return product_misfit(case, device, DX, dx, aligned) or misfit(device, config, sides, values, shared)


def launch(case, config):
    """`whole`, or `whole_of_z` where there is an activation."""
    M, K, N, R = case.size("M", "K", "N", "R")
    pointer, name, nk = TYPES[case.dtype], case.options["activation"], case.options["w_layout"] == "nk"
    kernel, first = (whole, ("dy",)) if name == "none" else (whole_of_z, ("z", "dy"))
    signature = dict.fromkeys((*first, "W", "x", "A", "B", "xa", "scale"), pointer) | {"M": "i32"}
    signature |= dict.fromkeys(("dx", "dW", "db", "dA", "dB"), pointer)
    options = {
        "K": K,
        "N": N,
        "R": R,
        "NK": nk,
        "BLOCK_M": padded(M),
        "BLOCK_R": padded(R),
        "PRECISION": case.precision,
    }
    more = {} if name == "none" else {"ACTIVATION": name}
    rows, columns = (N, K) if nk else (K, N)
    programs = triton.cdiv(K, config["DX_N"]) + triton.cdiv(rows, config["DW_M"]) * triton.cdiv(columns, config["DW_N"])
    programs += triton.cdiv(N, config["LOW"]) + triton.cdiv(N, SUMS.value)
    return launch_with(config, kernel, signature, options | more, (programs,))


@triton.jit
def pulled(z, dy, at, mask, ACTIVATION: tl.constexpr):
    """dz there; it is dy where z is None."""
    through = tl.load(dy + at, mask=mask, other=0.0)
    if z is not None:
        before = tl.load(z + at, mask=mask, other=0.0).to(tl.float32)
        through = (through.to(tl.float32) * slope(before, ACTIVATION)).to(dy.dtype.element_ty)
    return through


@triton.jit
def inputs_and_down(
    z, dy, W, x, A, B, scale, M, dx, dA, place,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr,
):  # fmt: skip
    """DX_N columns of dx and as many rows of dA."""
    rows, columns = tl.arange(0, BLOCK_M), (place * DX_N + tl.arange(0, DX_N)).to(tl.int64)
    n, r = tl.arange(0, DX_K), tl.arange(0, BLOCK_R)
    rows_inside, inside, r_inside = rows < M, (columns < K) | (K % DX_N == 0), (r < R) | (R == BLOCK_R)
    read = tl.minimum(rows, M - 1).to(tl.int64)  # rows past M are the last row again: their loads need no mask
    W_K: tl.constexpr = 1 if NK else N
    W_N: tl.constexpr = K if NK else 1
    acc, low = tl.zeros([BLOCK_M, DX_N], tl.float32), tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for start in range(0, N, DX_K):
        n_inside = (start + n < N) | (N % DX_K == 0)
        dz = pulled(z, dy, read[:, None] * N + (start + n)[None, :], n_inside[None, :], ACTIVATION)
        w_at = (start + n).to(tl.int64)[:, None] * W_N + columns[None, :] * W_K
        w = tl.load(W + w_at, mask=n_inside[:, None] & inside[None, :], other=0.0)
        acc = multiply(dz, w, acc, PRECISION)
        b_at = r.to(tl.int64)[None, :] * N + (start + n)[:, None]
        up = tl.load(B + b_at, mask=n_inside[:, None] & r_inside[None, :], other=0.0)
        low = multiply(dz, up, low, PRECISION)
    # what lies past M or R is inf * 0 where there is an inf: it must not meet x or A
    low = tl.where(rows_inside[:, None] & r_inside[None, :], low * tl.load(scale).to(tl.float32), 0.0)
    low_tile = low.to(dx.dtype.element_ty)
    down = tl.load(A + columns[None, :] * R + r[:, None], mask=r_inside[:, None] & inside[None, :], other=0.0)
    acc = multiply(low_tile, down, acc, PRECISION)
    mask = rows_inside[:, None] & inside[None, :]
    tl.store(dx + read[:, None] * K + columns[None, :], acc.to(dx.dtype.element_ty), mask=mask)
    x_tile = tl.load(x + read[None, :] * K + columns[:, None], mask=rows_inside[None, :] & inside[:, None], other=0.0)
    of_A = multiply(x_tile, low_tile, tl.zeros([DX_N, BLOCK_R], tl.float32), PRECISION)
    mask = inside[:, None] & r_inside[None, :]
    tl.store(dA + columns[:, None] * R + r[None, :], of_A.to(dA.dtype.element_ty), mask=mask)


@triton.jit
def weights(
    z, dy, x, M, dW, place,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, DW_M: tl.constexpr, DW_N: tl.constexpr,
):  # fmt: skip
    """A tile of dW as it is stored."""
    ROWS: tl.constexpr = N if NK else K
    COLUMNS: tl.constexpr = K if NK else N
    across: tl.constexpr = (COLUMNS + DW_N - 1) // DW_N
    m = tl.arange(0, BLOCK_M).to(tl.int64)
    rows = (place // across).to(tl.int64) * DW_M + tl.arange(0, DW_M)
    columns = (place % across).to(tl.int64) * DW_N + tl.arange(0, DW_N)
    rows_inside, inside = (rows < ROWS) | (ROWS % DW_M == 0), (columns < COLUMNS) | (COLUMNS % DW_N == 0)
    left_at, left_mask = m[None, :] * ROWS + rows[:, None], (m < M)[None, :] & rows_inside[:, None]
    right_at, right_mask = m[:, None] * COLUMNS + columns[None, :], (m < M)[:, None] & inside[None, :]
    if NK:
        left = pulled(z, dy, left_at, left_mask, ACTIVATION)
        right = tl.load(x + right_at, mask=right_mask, other=0.0)
    else:
        left = tl.load(x + left_at, mask=left_mask, other=0.0)
        right = pulled(z, dy, right_at, right_mask, ACTIVATION)
    acc = multiply(left, right, tl.zeros([DW_M, DW_N], tl.float32), PRECISION)
    mask = rows_inside[:, None] & inside[None, :]
    tl.store(dW + rows[:, None] * COLUMNS + columns[None, :], acc.to(dW.dtype.element_ty), mask=mask)


@triton.jit
def up_gradient(
    z, dy, xa, scale, M, dB, place,
    N: tl.constexpr, R: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """LOW columns of dB."""
    m, r = tl.arange(0, BLOCK_M).to(tl.int64), tl.arange(0, BLOCK_R).to(tl.int64)
    columns = place * LOW + tl.arange(0, LOW)
    inside, r_inside = (columns < N) | (N % LOW == 0), (r < R) | (R == BLOCK_R)
    low = tl.load(xa + m[None, :] * R + r[:, None], mask=(m < M)[None, :] & r_inside[:, None], other=0.0)
    dz = pulled(z, dy, m[:, None] * N + columns[None, :], (m < M)[:, None] & inside[None, :], ACTIVATION)
    acc = multiply(low, dz, tl.zeros([BLOCK_R, LOW], tl.float32), PRECISION) * tl.load(scale).to(tl.float32)
    mask = r_inside[:, None] & inside[None, :]
    tl.store(dB + r[:, None] * N + columns[None, :], acc.to(dB.dtype.element_ty), mask=mask)


@triton.jit
def gradients(
    z, dy, W, x, A, B, xa, scale, M, dx, dW, db, dA, dB,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr, DW_M: tl.constexpr,
    DW_N: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """The body of the launches below. What takes longest begins first."""
    pid = tl.program_id(0)
    of_dx: tl.constexpr = (K + DX_N - 1) // DX_N
    of_dW: tl.constexpr = (((N if NK else K) + DW_M - 1) // DW_M) * (((K if NK else N) + DW_N - 1) // DW_N)
    of_dB: tl.constexpr = (N + LOW - 1) // LOW
    if pid < of_dx:
        inputs_and_down(
            z, dy, W, x, A, B, scale, M, dx, dA, pid, K, N, R, NK, ACTIVATION, PRECISION, BLOCK_M, BLOCK_R, DX_N, DX_K
        )  # fmt: skip
    elif pid < of_dx + of_dW:
        weights(z, dy, x, M, dW, pid - of_dx, K, N, NK, ACTIVATION, PRECISION, BLOCK_M, DW_M, DW_N)
    elif pid < of_dx + of_dW + of_dB:
        place = pid - of_dx - of_dW
        up_gradient(z, dy, xa, scale, M, dB, place, N, R, ACTIVATION, PRECISION, BLOCK_M, BLOCK_R, LOW)
    else:
        columns = (pid - of_dx - of_dW - of_dB) * SUMS + tl.arange(0, SUMS)
        m, inside = tl.arange(0, BLOCK_M).to(tl.int64), columns < N
        dz = pulled(z, dy, m[:, None] * N + columns[None, :], (m < M)[:, None] & inside[None, :], ACTIVATION)
        tl.store(db + columns, tl.sum(dz.to(tl.float32), 0).to(db.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["M"])
def whole(
    dy, W, x, A, B, xa, scale, M, dx, dW, db, dA, dB,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr, DW_M: tl.constexpr,
    DW_N: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Without an activation dz is dy."""
    gradients(
        None, dy, W, x, A, B, xa, scale, M, dx, dW, db, dA, dB,
        K, N, R, NK, "none", PRECISION, BLOCK_M, BLOCK_R, DX_N, DX_K, DW_M, DW_N, LOW,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def whole_of_z(
    z, dy, W, x, A, B, xa, scale, M, dx, dW, db, dA, dB,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr, DW_M: tl.constexpr,
    DW_N: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    gradients(
        z, dy, W, x, A, B, xa, scale, M, dx, dW, db, dA, dB,
        K, N, R, NK, ACTIVATION, PRECISION, BLOCK_M, BLOCK_R, DX_N, DX_K, DW_M, DW_N, LOW,
    )  # fmt: skip
