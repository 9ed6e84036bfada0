"""The backward pass of a linear layer with an adapter in Triton: what lora_linear and lora_mlp launch there, and the choice of tiles.

Forward, two launches: x @ A (M, R), then the layer, which leaves z behind where an activation follows it. Backward two as well, or one of
few rows (lora_few_rows.py):

    low         a program has a tile of rows: dz = dy * act'(z), where there is an activation, and dxa = scale * dz @ Bᵀ (M, R).
    products    dx = dz @ Wᵀ + dxa @ Aᵀ, dW = xᵀ @ dz and db (_shared/triton/linear_gradients.py), and behind these programs those of
                dA = xᵀ @ dxa and of dB = scale * (x @ A)ᵀ @ dz, which have few columns, or rows.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee, multiprocessors
from implementations._shared.triton import linear_gradients, lora_few_rows
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit, most_stages
from implementations._shared.triton.linear_gradients import (
    DW,
    DX,
    SUM_COLUMNS,
    bias_sums,
    inputs_tile,
    kind_of,
    weights_tile,
)
from implementations._shared.triton.lora_few_rows import is_aligned
from implementations._shared.triton.matmul import multiply, padded
from implementations._shared.triton.product import product, product_bytes, product_misfit
from implementations._shared.triton.schedule import choose
from implementations._shared.triton.slopes import slope


def config(case, device):
    """The tunables of the launches of backward."""
    if lora_few_rows.takes(case):
        return prefixed({"whole": lora_few_rows.config(case, device)})
    M, K, N, R = case.size("M", "K", "N", "R")
    aligned, BLOCK_R = is_aligned(case), padded(R)
    # dx's last product has R of both factors at once
    widest = 256 if R <= 64 and not is_ieee(case) else 128 if R <= 64 else 64
    products = choose(case, device, K, N, aligned, widest=widest)
    products["LOW"] = 64 if aligned else 32
    # programs that leave multiprocessors idle wait for their loads alone: few steps, and wide ones, but slopes of so many would spill
    plain = R <= 16 and case.options["activation"] == "none"
    wide = 4 if plain and triton.cdiv(M, 16) < multiprocessors(device) / 2 else 1
    low = {"BLOCK_M": 16, "BLOCK_N": min(wide * 256 // case.itemsize if R <= 64 else 64, padded(N)), "num_warps": 4}
    low["num_stages"] = most_stages(
        device, 4, lambda stages: product_bytes(case, 2 * low["BLOCK_M"], BLOCK_R, low["BLOCK_N"], stages)
    )
    return prefixed({"low": low, "products": products})


def fits(case, device, config):
    """Why a config cannot run, or None."""
    if lora_few_rows.takes(case):
        return lora_few_rows.fits(case, device, by_launch(config)["whole"])
    own, aligned, BLOCK_R = by_launch(config), is_aligned(case), padded(case.sizes["R"])
    low, products = own["low"], own["products"]
    shared = product_bytes(case, 2 * low["BLOCK_M"], BLOCK_R, low["BLOCK_N"], low["num_stages"])
    first = misfit(device, low, ("BLOCK_M", "BLOCK_N"), low["BLOCK_M"] * BLOCK_R, shared)
    if low["BLOCK_M"] >= 64 and not aligned:
        first = first or f"BLOCK_M={low['BLOCK_M']}: rows of B that start anywhere have 32 at most"
    if products["LOW"] >= 64 and not aligned:
        return f"products: LOW={products['LOW']}: rows that start anywhere have 32 at most"
    second = misfit(device, products, ("LOW",), products["LOW"] * BLOCK_R)
    second = (
        second
        or product_misfit(case, device, DX, products, aligned)
        or product_misfit(case, device, DW, products, aligned)
    )
    return first_reason({"low": first, "products": second})


def launches(case, config):
    """`low` and `products`, or the one of lora_few_rows.py."""
    if lora_few_rows.takes(case):
        return (lora_few_rows.launch(case, by_launch(config)["whole"]),)
    M, K, N, R = case.size("M", "K", "N", "R")
    pointer, own, name = TYPES[case.dtype], by_launch(config), case.options["activation"]
    tile = own["low"]
    options = {"N": N, "R": R, "BLOCK_R": padded(R), "PRECISION": case.precision}
    if name == "none":
        kernel, signature = low, {"dy": pointer, "scale": pointer, "B": pointer, "M": "i32", "dxa": pointer}
    else:
        kernel, signature = (
            low_of_z,
            dict.fromkeys(("z", "dy", "scale", "B"), pointer) | {"M": "i32", "dz": pointer, "dxa": pointer},
        )
    more = {} if name == "none" else {"ACTIVATION": name}
    first = launch_with(tile, kernel, signature, options | more, (triton.cdiv(M, tile["BLOCK_M"]),))
    tile = own["products"]
    signature = dict.fromkeys(("dz", "W", "x", "A", "xa", "scale", "dxa"), pointer) | {"M": "i32"}
    signature |= dict.fromkeys(("dx", "dW", "db", "dA", "dB"), pointer)
    layer, programs = linear_gradients.layer(case, tile, K, N, bias=True)
    programs += triton.cdiv(K, tile["LOW"]) + triton.cdiv(N, tile["LOW"])
    return first, launch_with(tile, products, signature, layer | {"R": R, "BLOCK_R": padded(R)}, (programs,))


@triton.jit
def low_rows(
    z, dy, scale, B, M, dz, dxa,
    N: tl.constexpr, R: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of dz, unless it is dy (then z and dz are None), and of dxa."""
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    read = tl.minimum(rows, M - 1)
    n, r = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_R)
    r_inside = (r < R) | (R == BLOCK_R)
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for start in range(0, N, BLOCK_N):
        columns = start + n
        inside = (columns < N) | (N % BLOCK_N == 0)
        at = read[:, None] * N + columns[None, :]
        through = tl.load(dy + at, mask=inside[None, :], other=0.0)
        if z is not None:
            before = tl.load(z + at, mask=inside[None, :], other=0.0).to(tl.float32)
            through = (through.to(tl.float32) * slope(before, ACTIVATION)).to(dy.dtype.element_ty)
            tl.store(dz + at, through, mask=(rows < M)[:, None] & inside[None, :])
        up = tl.load(
            B + r.to(tl.int64)[None, :] * N + columns[:, None], mask=inside[:, None] & r_inside[None, :], other=0.0
        )
        acc = multiply(through, up, acc, PRECISION)
    acc *= tl.load(scale).to(tl.float32)
    tl.store(
        dxa + rows[:, None] * R + r[None, :], acc.to(dxa.dtype.element_ty), mask=(rows < M)[:, None] & r_inside[None, :]
    )


@triton.jit(do_not_specialize=["M"])
def low(
    dy, scale, B, M, dxa,
    N: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Without an activation dz is dy."""
    low_rows(None, dy, scale, B, M, None, dxa, N, R, "none", PRECISION, BLOCK_M, BLOCK_N, BLOCK_R)


@triton.jit(do_not_specialize=["M"])
def low_of_z(
    z, dy, scale, B, M, dz, dxa,
    N: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    low_rows(z, dy, scale, B, M, dz, dxa, N, R, ACTIVATION, PRECISION, BLOCK_M, BLOCK_N, BLOCK_R)


@triton.jit
def down_gradient(
    x, dxa, M, dA, place,
    K: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, LOW: tl.constexpr, BLOCK_R: tl.constexpr, STEP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """LOW rows of dA."""
    rows, r = place.to(tl.int64) * LOW + tl.arange(0, LOW), tl.arange(0, BLOCK_R).to(tl.int64)
    inside, r_inside = (rows < K) | (K % LOW == 0), (r < R) | (R == BLOCK_R)
    acc = product(x, dxa, rows, r, inside, r_inside, 0, M, M, 1, K, R, 1, PRECISION, LOW, BLOCK_R, STEP, EVEN)
    mask = inside[:, None] & r_inside[None, :]
    tl.store(dA + rows[:, None] * R + r[None, :], acc.to(dA.dtype.element_ty), mask=mask)


@triton.jit
def up_gradient(
    xa, dz, scale, M, dB, place,
    N: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, LOW: tl.constexpr, BLOCK_R: tl.constexpr, STEP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """LOW columns of dB."""
    columns, r = place.to(tl.int64) * LOW + tl.arange(0, LOW), tl.arange(0, BLOCK_R).to(tl.int64)
    inside, r_inside = (columns < N) | (N % LOW == 0), (r < R) | (R == BLOCK_R)
    acc = product(xa, dz, r, columns, r_inside, inside, 0, M, M, 1, R, N, 1, PRECISION, BLOCK_R, LOW, STEP, EVEN)
    mask = r_inside[:, None] & inside[None, :]
    scaled = acc * tl.load(scale).to(tl.float32)
    tl.store(dB + r[:, None] * N + columns[None, :], scaled.to(dB.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M"])
def products(
    dz, W, x, A, xa, scale, dxa, M, dx, dW, db, dA, dB,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, R: tl.constexpr, BLOCK_R: tl.constexpr, PRECISION: tl.constexpr,
    EVEN_M: tl.constexpr, DX_FIRST: tl.constexpr,
    DX_M: tl.constexpr, DX_N: tl.constexpr, DX_K: tl.constexpr, DW_M: tl.constexpr, DW_N: tl.constexpr, DW_K: tl.constexpr,
    SPLIT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """A tile of dx, a tile of dW, some of db, LOW rows of dA or LOW columns of dB."""
    kind, place = kind_of(M, K, N, NK, DX_M, DX_N, DW_M, DW_N, SPLIT, DX_FIRST)
    if kind == 0:
        r = tl.arange(0, BLOCK_R).to(tl.int64)
        r_inside = (r < R) | (R == BLOCK_R)
        acc, rows, columns, rows_inside, inside = inputs_tile(dz, W, M, place, K, N, NK, PRECISION, DX_M, DX_N, DX_K)
        read = tl.minimum(rows, M - 1)
        low_tile = tl.load(dxa + read[:, None] * R + r[None, :], mask=r_inside[None, :], other=0.0)
        down = tl.load(A + columns[None, :] * R + r[:, None], mask=r_inside[:, None] & inside[None, :], other=0.0)
        acc = multiply(low_tile, down, acc, PRECISION)
        mask = rows_inside[:, None] & inside[None, :]
        tl.store(dx + rows[:, None] * K + columns[None, :], acc.to(dx.dtype.element_ty), mask=mask)
    elif kind == 1:
        weights_tile(x, dz, M, dW, place, K, N, NK, PRECISION, DW_M, DW_N, DW_K, SPLIT, EVEN_M)
    else:
        of_db = tl.cdiv(N, SUM_COLUMNS)
        of_dA = tl.cdiv(K, LOW)
        if place < of_db:
            bias_sums(dz, M, db, place, K, N, DW_K, SPLIT)
        elif place < of_db + of_dA:
            down_gradient(x, dxa, M, dA, place - of_db, K, R, PRECISION, LOW, BLOCK_R, DW_K, EVEN_M)
        else:
            up_gradient(xa, dz, scale, M, dB, place - of_db - of_dA, N, R, PRECISION, LOW, BLOCK_R, DW_K, EVEN_M)
