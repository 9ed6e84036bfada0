"""shcsa in Triton: what each variant launches, most of it kernels of _shared/triton, and the choice of tiles.

    padded_attention   dense → attention's flash, or whole_row where that fits                             2 launches
    padded_softmax_v   dense → scores → weighted_values' flash, or whole_row where that fits               3
    padded_softmax     dense → scores → padded_softmax's row or online → values                            4
    plain_softmax      dense → scores, -inf where hidden → softmax's row or online → values                4

    dense              x @ W + b to three arrays (T, D), so that every kernel behind it takes contiguous rows. A program has
                       columns of one of the three.
    scores             q kᵀ / √D in the storage dtype. Tiles above the diagonal are written only for plain_softmax.
    values             weights times v over what a tile of rows sees; hidden weights, NaN or not, are replaced by 0.

T, C and D are compile-time constants, n_padd is read from the device.
"""

import dataclasses
import functools
import math

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned
from implementations._shared.triton import attention, padded_softmax, softmax, weighted_values
from implementations._shared.triton.attention import first_visible, tokens_of
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit, most_stages
from implementations._shared.triton.matmul import padded
from implementations._shared.triton.weighted_values import values_of

TUNABLES = {
    ("padded_attention", "padded_softmax_v", "padded_softmax", "plain_softmax"): {
        "dense_BLOCK_M": (16, 32, 64, 128), "dense_BLOCK_N": (16, 32, 64, 128), "dense_BLOCK_K": (16, 32, 64, 128),
        "dense_num_warps": (4, 8), "dense_num_stages": (2, 3, 4),
    },
    "padded_attention": {
        "attention_BLOCK_M": (16, 32, 64, 128), "attention_BLOCK_N": (16, 32, 64, 128), "attention_num_warps": (4, 8, 16),
        "attention_num_stages": (1, 2, 3, 4), "attention_N_OCOLS": (16, 32, 64, 128, 256),
    },
    ("padded_softmax_v", "padded_softmax", "plain_softmax"): {
        "scores_BLOCK": (16, 32, 64, 128), "scores_num_warps": (4, 8),
        "values_BLOCK_M": (16, 32, 64, 128), "values_BLOCK_N": (16, 32, 64, 128), "values_num_warps": (2, 4, 8),
        "values_num_stages": (1, 2, 3, 4),
    },
    "padded_softmax_v": {"values_N_OCOLS": (16, 32, 64, 128, 256)},
    "padded_softmax": {"softmax_BLOCK": (1024, 2048, 4096, 8192), "softmax_num_warps": (1, 2, 4, 8, 16)},
    "plain_softmax": {
        "softmax_ROWS": (1, 2, 4, 8), "softmax_BLOCK": (1024, 2048, 4096, 8192), "softmax_num_warps": (1, 2, 4, 8, 16),
        "softmax_num_stages": (1, 3, 4),
    },
}  # fmt: skip
# variant → the launch that has a shared kernel, whose module, the kernel that is taken where it can be, and the other
SHARED = {
    "padded_attention": ("attention", attention, "whole_row", "flash"),
    "padded_softmax_v": ("values", weighted_values, "whole_row", "flash"),
    "padded_softmax": ("softmax", padded_softmax, "row", "online"),
    "plain_softmax": ("softmax", softmax, "row", "online"),
}


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    return attention.skip(shared_case(case), "flash", device)


def shared_case(case):
    """The case with the sizes that shared kernels go by."""
    T, D = case.size("T", "D")
    return dataclasses.replace(case, sizes={"B": 1, "H": 1, "T": T, "D": D, "R": T, "C": T})


def shared_kernel(case, variant, device):
    """The launch of a variant that has a shared kernel, the kernel's module, and which of its kernels that is."""
    launch, module, wanted, other = SHARED[variant]
    return launch, module, wanted if module.skip(shared_case(case), wanted, device) is None else other


def config(case, variant, device):
    """The tunables of a variant: those of each of its launches. A whole_row has no BLOCK_N and no stages, a softmax ROWS or a
    BLOCK."""
    launch, module, kernel = shared_kernel(case, variant, device)
    configs = {"dense": dense_config(case, device), launch: module.config(shared_case(case), kernel, device)}
    if variant != "padded_attention":
        configs["scores"] = scores_config(case)
    if launch == "softmax":
        configs["values"] = weighted_values.config(case, "flash", device)
    return prefixed(configs)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    launch, module, kernel = shared_kernel(case, variant, device)
    configs = by_launch(config)
    reasons = {
        "dense": dense_misfit(case, device, configs["dense"]),
        launch: module.fits(shared_case(case), kernel, device, configs[launch]),
    }
    if variant != "padded_attention":
        reasons["scores"] = scores_misfit(case, device, configs["scores"])
    if launch == "softmax":
        reasons["values"] = weighted_values.fits(case, "flash", device, configs["values"])
    return first_reason(reasons)


def launches(case, variant, device, config):
    """The launches of a call, in order. The outputs of each are inputs of later ones."""
    T, C, D = case.size("T", "C", "D")
    pointer, configs = TYPES[case.dtype], by_launch(config)
    launch, module, kernel = shared_kernel(case, variant, device)
    (shared,) = module.launches(shared_case(case), kernel, device, configs[launch])
    tile = configs["dense"]
    signature = dict.fromkeys(("x", "W", "b", "q", "k", "v"), pointer)
    options = {"T": T, "C": C, "D": D, "NK": case.options["w_layout"] == "nk", "PRECISION": case.precision}
    grid = (triton.cdiv(T, tile["BLOCK_M"]) * 3 * triton.cdiv(D, tile["BLOCK_N"]),)
    first = launch_with(tile, dense, signature, options, grid)
    if variant == "padded_attention":
        return first, shared

    tile = configs["scores"]
    signature = {"q": pointer, "k": pointer, "n_padd": "*i32", "att": pointer}
    options = {"T": T, "D": D, "BLOCK_D": padded(D), "SCALE": 1 / math.sqrt(D), "PRECISION": case.precision}
    options["MASKED"] = variant == "plain_softmax"
    second = launch_with(tile, scores, signature, options, (triton.cdiv(T, tile["BLOCK"]) ** 2,))
    if variant == "padded_softmax_v":
        return first, second, shared

    tile = configs["values"]
    signature = {"att": pointer, "v": pointer, "n_padd": "*i32", "y": pointer}
    options = {"T": T, "D": D, "BLOCK_D": padded(D), "PRECISION": case.precision}
    last = launch_with(tile, values, signature, options, (triton.cdiv(T, tile["BLOCK_M"]),))
    return first, second, shared, last


def dense_config(case, device):
    """The tunables of `dense`: small tiles while a GPU has multiprocessors to spare."""
    T, C, D = case.size("T", "C", "D")
    BLOCK_N = min(64, padded(D))
    BLOCK_M, BLOCK_K = 128, 64 if case.dtype != "float32" else 32
    if is_ieee(case):
        BLOCK_M, BLOCK_K = 64, 16  # operands pass through registers: more would spill
    while BLOCK_M > 16 and triton.cdiv(T, BLOCK_M) * 3 * triton.cdiv(D, BLOCK_N) < 0.9 * (multiprocessors(device)):
        BLOCK_M //= 2
    if not rows_are_aligned(case, C, D):
        BLOCK_K = min(BLOCK_K, 32)  # an address for each element
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": min(BLOCK_K, padded(C))}
    return tile | {"num_warps": 4, "num_stages": most_stages(device, 4, functools.partial(dense_bytes, case, tile))}


def dense_misfit(case, device, config):
    """Why `dense` cannot have this config, or None."""
    sums = config["BLOCK_M"] * config["BLOCK_N"]
    return misfit(
        device, config, ("BLOCK_M", "BLOCK_N", "BLOCK_K"), sums, dense_bytes(case, config, config["num_stages"])
    )


def dense_bytes(case, tile, num_stages):
    """Shared memory of `dense`: a slab of x and one of W a stage, and some to rearrange."""
    return num_stages * (tile["BLOCK_M"] + tile["BLOCK_N"]) * tile["BLOCK_K"] * case.itemsize + (8 << 10)


def scores_config(case):
    """The tunables of `scores`: a square tile, because a row reads as much of k as a column of q."""
    ieee = is_ieee(case)
    block = 32 if ieee or padded(case.sizes["D"]) > 128 else 64
    return {"BLOCK": min(block, padded(case.sizes["T"])), "num_warps": 8 if ieee else 4}


def scores_misfit(case, device, config):
    """Why `scores` cannot have this config, or None."""
    BLOCK = config["BLOCK"]
    return misfit(device, config, ("BLOCK",), BLOCK * BLOCK, 2 * BLOCK * padded(case.sizes["D"]) * case.itemsize)


@triton.jit
def dense(
    x, W, b, q, k, v,
    T: tl.constexpr, C: tl.constexpr, D: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of q, k or v. Neighbouring programs have the same rows of x."""
    ACROSS: tl.constexpr = (D + BLOCK_N - 1) // BLOCK_N
    part = tl.program_id(0) % (3 * ACROSS) // ACROSS
    rows = tl.program_id(0) // (3 * ACROSS) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.program_id(0) % ACROSS * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = part * D + d
    c = tl.arange(0, BLOCK_K)
    # rows past T read the last row again, columns past D the last column, and neither is stored: no masks for them
    x_tile = x + tl.minimum(rows, T - 1).to(tl.int64)[:, None] * C + c[None, :]
    inner = tl.minimum(columns, part * D + D - 1) if D % BLOCK_N else columns
    if NK:
        W_tile = W + inner.to(tl.int64)[None, :] * C + c[:, None]
    else:
        W_tile = W + c.to(tl.int64)[:, None] * (3 * D) + inner[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, C, BLOCK_K):
        inside = (start + c < C) | (C % BLOCK_K == 0)
        left = tl.load(x_tile, mask=inside[None, :], other=0.0)
        right = tl.load(W_tile, mask=inside[:, None], other=0.0)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
        x_tile += BLOCK_K
        W_tile += BLOCK_K if NK else BLOCK_K * 3 * D
    z = acc + tl.load(b + columns, mask=d < D, other=0.0).to(tl.float32)[None, :]
    z = z.to(q.dtype.element_ty)
    place = rows.to(tl.int64)[:, None] * D + d[None, :]
    inside_y = (rows[:, None] < T) & (d[None, :] < D)
    tl.store(q + place, z, mask=inside_y & (part == 0))
    tl.store(k + place, z, mask=inside_y & (part == 1))
    tl.store(v + place, z, mask=inside_y & (part == 2))


@triton.jit
def scores(
    q, k, n_padd, att,
    T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of att (T, T)."""
    TILES: tl.constexpr = (T + BLOCK - 1) // BLOCK
    row, column = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    rows, columns, d = row * BLOCK + tl.arange(0, BLOCK), column * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    s = tl.full([BLOCK, BLOCK], float("-inf"), tl.float32)
    if column <= row:
        left, right = tokens_of(q, rows, d, T, D, True), tokens_of(k, columns, d, T, D, True)
        s = tl.dot(left, tl.trans(right), input_precision=PRECISION) * SCALE
    if MASKED:
        n = first_visible(n_padd, 0, T)
        s = tl.where((columns[None, :] >= n) & (columns[None, :] <= rows[:, None]), s, float("-inf"))
    inside = (rows[:, None] < T) & (columns[None, :] < T)
    if not MASKED:
        inside = inside & (column <= row)
    place = att + rows.to(tl.int64)[:, None] * T + columns[None, :]
    tl.store(place, s.to(att.dtype.element_ty), mask=inside)


@triton.jit
def values(
    att, v, n_padd, y,
    T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of y, the last ones first, from weights att (T, T). Blocks begin where their loads stay aligned."""
    first = ((T + BLOCK_M - 1) // BLOCK_M - 1 - tl.program_id(0)) * BLOCK_M
    n = first_visible(n_padd, 0, T)
    rows, d = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(n // 16 * 16, tl.minimum(first + BLOCK_M, T), BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        seen = tl.minimum(rows, T - 1)[:, None]
        touched = (columns[None, :] // 16 <= seen // 16) & (columns[None, :] < T)  # whole vectors
        weights = tl.load(att + seen.to(tl.int64) * T + columns[None, :], mask=touched, other=0.0)
        weights = tl.where((columns[None, :] >= n) & (columns[None, :] <= rows[:, None]), weights, 0.0)
        acc = tl.dot(weights, values_of(v, columns, d, n, T, D, True), acc, input_precision=PRECISION)
    z = tl.where(rows[:, None] < n, 0.0, acc)
    inside = (rows[:, None] < T) & (d[None, :] < D)
    place = y + rows.to(tl.int64)[:, None] * D + d[None, :]
    tl.store(place, z.to(y.dtype.element_ty), mask=inside)
