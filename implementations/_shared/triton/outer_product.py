"""The first layer of a perceptron behind outer products, in Triton, without the outer products: act((x ⊗ x) @ W + b).

x of a sample is N = (F + 1) D values: dense (M, D), then sparse (M, F, D); row i N + j of W (N², P) multiplies x[i] x[j]. W is large
(186 624 rows for DLRM) and all of the traffic, samples are few: so programs share out W, not y.

    partial   a program has a tile of samples, BLOCK_N columns of W, BLOCK_J values j, whose x it keeps, and one of PARTS pieces of
              the values i: for each i it makes x[i] x[j] in registers and multiplies. The sums go to an array (shares, M, P), float32
    total     adds the shares, bias and activation
"""

import functools

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee, multiprocessors
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import REGISTERS, misfit, most_stages
from implementations._shared.triton.matmul import multiply, padded


def config(case, columns, device):
    """The tunables of `partial`, of W with so many columns: as many programs as multiprocessors, each with long rows of W. `case` is one
    of interaction."""
    M, F, D = case.size("M", "F", "D")
    N, aligned = (F + 1) * D, D * case.itemsize % 16 == 0
    # of rows that start anywhere see `fits` of perceptron.py
    BLOCK_M = min(128 if aligned and not is_ieee(case) else 32, padded(M))
    BLOCK_N = min(64 if is_ieee(case) else 128, padded(columns))
    BLOCK_J = min(32 if is_ieee(case) else 256 // case.itemsize, padded(N))
    others = triton.cdiv(M, BLOCK_M) * triton.cdiv(columns, BLOCK_N) * triton.cdiv(N, BLOCK_J)
    parts = max(1, min(N, multiprocessors(device) // others))
    num_warps = 8 if BLOCK_M == 128 else 4
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_J": BLOCK_J}
    num_stages = most_stages(device, 3, functools.partial(shared_bytes, case, tile))
    return tile | {"PARTS": parts, "num_warps": num_warps, "num_stages": num_stages}


def fits(case, device, config):
    """Why a config of `partial` cannot run, or None."""
    BLOCK_M, BLOCK_N, BLOCK_J = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_J"]
    anywhere = device.capability[0] == 9 and case.sizes["D"] * case.itemsize % 16 and not is_ieee(case)
    if anywhere and BLOCK_M >= 64:
        return f"BLOCK_M={BLOCK_M}: Triton computes wrongly with rows that start anywhere; 32 is right"
    values, shared = BLOCK_M * (BLOCK_N + BLOCK_J), shared_bytes(case, config, config["num_stages"])
    return misfit(device, config, ("BLOCK_M", "BLOCK_N", "BLOCK_J"), values, shared)


def shared_bytes(case, tile, num_stages):
    """Shared memory of `partial`: a tile of W a stage, and one of the outer products."""
    return (num_stages * tile["BLOCK_N"] + tile["BLOCK_M"]) * tile["BLOCK_J"] * case.itemsize


def total_config(shares):
    """The tunables of `total`."""
    padded_shares = triton.next_power_of_2(shares)
    BLOCK = max(32, min(256, 4096 // padded_shares))
    return {
        "BLOCK": BLOCK,
        "num_warps": max(4, triton.next_power_of_2(triton.cdiv(BLOCK * padded_shares, 32 * REGISTERS))),
    }


def total_fits(device, config, shares):
    """Why a config of `total` cannot run, or None."""
    return misfit(device, config, values=config["BLOCK"] * triton.next_power_of_2(shares))


def shares_of(case, config):
    """How many sums there are of each element."""
    F, D = case.size("F", "D")
    return triton.cdiv((F + 1) * D, config["BLOCK_J"]) * config["PARTS"]


def launches(case, columns, activation, own, total_own):
    """The two launches: (dense, sparse, W, M, sums) and (sums, b, count, y)."""
    M, F, D = case.size("M", "F", "D")
    pointer, shares = TYPES[case.dtype], shares_of(case, own)
    signature = {"dense": pointer, "sparse": pointer, "W": pointer, "M": "i32", "sums": "*fp32"}
    constexprs = {"F": F, "D": D, "P": columns, "PRECISION": case.precision}
    grid = triton.cdiv(M, own["BLOCK_M"]) * triton.cdiv(columns, own["BLOCK_N"]) * shares
    return (
        launch_with(own, partial, signature, constexprs, (grid,)),
        total_launch(case.dtype, M, columns, shares, activation, total_own),
    )


def total_launch(dtype, M, columns, shares, activation, own):
    """The launch of `total`: (sums, b, count, y), where count is M × columns."""
    signature = {"sums": "*fp32", "b": TYPES[dtype], "count": "i32", "y": TYPES[dtype]}
    options = {"P": columns, "SHARES": shares, "PADDED": triton.next_power_of_2(shares), "ACTIVATION": activation}
    return launch_with(own, total, signature, options, (triton.cdiv(M * columns, own["BLOCK"]),))


@triton.jit
def values_at(dense, sparse, rows, n, F: tl.constexpr, D: tl.constexpr):
    """x[n] of the samples `rows`, float32; `rows` and `n` are broadcast against one another."""
    N: tl.constexpr = (F + 1) * D
    place = tl.where(n < D, dense + rows * D, sparse + rows * F * D - D)
    return tl.load(place + n, mask=n < N, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["M"])
def partial(
    dense, sparse, W, M, sums,
    F: tl.constexpr, D: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Neighbouring programs have neighbouring columns of the same rows of W."""
    N: tl.constexpr = (F + 1) * D
    ACROSS: tl.constexpr = (P + BLOCK_N - 1) // BLOCK_N
    JS: tl.constexpr = (N + BLOCK_J - 1) // BLOCK_J
    EACH: tl.constexpr = (N + PARTS - 1) // PARTS
    share = tl.program_id(0) // ACROSS % (JS * PARTS)
    m = (tl.program_id(0) // (ACROSS * JS * PARTS) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    rows = tl.minimum(m, M - 1)  # rows past M are the last again, and are not stored
    n = tl.program_id(0) % ACROSS * BLOCK_N + tl.arange(0, BLOCK_N)
    j = share % JS * BLOCK_J + tl.arange(0, BLOCK_J)
    first = share // JS * EACH
    last = tl.minimum(first + EACH, N)

    x_j = values_at(dense, sparse, rows[:, None], j[None, :], F, D)
    inside = ((j < N) | (N % BLOCK_J == 0))[:, None] & ((n < P) | (P % BLOCK_N == 0))[None, :]
    W_tile = W + (first.to(tl.int64) * N + j[:, None]) * P + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    x_i = values_at(dense, sparse, rows, first, F, D)
    for i in range(first, last):
        following = values_at(dense, sparse, rows, i + 1, F, D)  # asked for before it is needed
        # past x's end it is 0, which an infinite x[i] would make NaN
        product = tl.where((j < N)[None, :], x_i[:, None] * x_j, 0.0).to(dense.dtype.element_ty)
        acc = multiply(product, tl.load(W_tile, mask=inside, other=0.0), acc, PRECISION)
        W_tile += N * P
        x_i = following
    to = sums + (share.to(tl.int64) * M + m[:, None]) * P + n[None, :]
    tl.store(to, acc, mask=(m < M)[:, None] & (n < P)[None, :])


@triton.jit(do_not_specialize=["count"])
def total(
    sums, b, count, y,
    P: tl.constexpr, SHARES: tl.constexpr, PADDED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    share = tl.arange(0, PADDED).to(tl.int64)
    inside = at < count
    z = tl.load(
        sums + share[:, None] * count + at[None, :], mask=(share < SHARES)[:, None] & inside[None, :], other=0.0
    )
    z = tl.sum(z, 0) + tl.load(b + at % P, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, activate(z, ACTIVATION).to(y.dtype.element_ty), mask=inside)
