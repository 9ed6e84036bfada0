"""softmax(att) v of causal scores with padding in Triton: kernels that padded_softmax_v and shcsa launch, and the choice of
their tiles.

    flash       a program has a tile of rows and goes through what they see of att in blocks, with a running maximum and sum
                for each row, and through v beside it. att is read once; every tile of rows reads v again, from L2.
    whole_row   a program holds all scores of 16 rows: one maximum, one sum, one product with all of v, which must fit,
                N_OCOLS of its columns at a time, all of them unless told otherwise.

Blocks begin at the last multiple of 16 tokens before n_padd, so that what is loaded stays aligned. Hidden scores are replaced,
whatever they hold, and hidden rows of v are never read. Weights are rounded to the storage dtype for the product and divided
by their sum after it. Long rows, the last ones, begin first. T and D are compile-time constants, n_padd is read from the
device.
"""

import functools
import math

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned, shared_memory
from implementations._shared.triton.attention import (
    IN_REGISTERS,
    IN_REGISTERS_REASON,
    WIDEST,
    first_visible,
    whole_row_config,
)
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import LEAST_DOT, misfit, most_stages
from implementations._shared.triton.matmul import padded
from implementations._shared.triton.softmax import LOWEST

TUNABLES = {
    "flash": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "num_warps": (2, 4, 8), "num_stages": (1, 2, 3, 4),
    },
    "whole_row": {"BLOCK_M": (16, 32, 64), "N_OCOLS": (16, 32, 64, 128, 256), "num_warps": (4, 8, 16)},
}  # fmt: skip

LOG2_E = tl.constexpr(math.log2(math.e))


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    T, D = case.size("T", "D")
    if D > WIDEST:
        return f"rows of v of more than {WIDEST} elements do not fit in a program's registers"
    if variant == "flash":
        return None
    if T > 2048:
        return "16 rows of more than 2048 scores do not fit in a program's registers: flash takes them"
    if is_ieee(case) and padded(T) * padded(D) > IN_REGISTERS:
        return IN_REGISTERS_REASON
    if device.type == "cuda" and whole_row_bytes(case, LEAST_DOT) > shared_memory(device):
        return f"v ({T} × {D}) does not fit in a program's shared memory: flash takes it"
    return None


def config(case, variant, device):
    """The tunables of a variant: its tile, warps and stages."""
    return flash_config(case, device) if variant == "flash" else whole_row_config(case)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    T, BLOCK_D = padded(case.sizes["T"]), padded(case.sizes["D"])
    if variant == "whole_row":
        BLOCK_M = config["BLOCK_M"]
        if config["N_OCOLS"] > BLOCK_D:
            return f"N_OCOLS={config['N_OCOLS']}; rows of y have {BLOCK_D} columns"
        return misfit(device, config, ("BLOCK_M", "N_OCOLS"), BLOCK_M * max(T, BLOCK_D), whole_row_bytes(case, BLOCK_M))
    sums = config["BLOCK_M"] * (config["BLOCK_N"] + BLOCK_D)
    return misfit(device, config, ("BLOCK_M", "BLOCK_N"), sums, flash_bytes(case, config, config["num_stages"]))


def launches(case, variant, device, config):
    """The one launch of every variant: a program for each tile of rows."""
    T, D = case.size("T", "D")
    pointer = TYPES[case.dtype]
    signature = {"att": pointer, "v": pointer, "n_padd": "*i32", "y": pointer}
    options = {"T": T, "D": D, "BLOCK_D": padded(D), "PRECISION": case.precision}
    if variant == "whole_row":
        options["BLOCK_T"] = padded(T)
    grid = (triton.cdiv(T, config["BLOCK_M"]),)
    return (launch_with(config, flash if variant == "flash" else whole_row, signature, options, grid),)


def flash_config(case, device):
    """The tile of `flash`, its warps and its stages: more rows read v less often, fewer fill more multiprocessors.

    4 TB/s times a latency of 0.8 µs is 25 KB of att in flight on each of 132 multiprocessors. In bfloat16 with D = 64 an H100 took, with 16
    and 32 rows, 60.5 and 65.6 µs at T = 8192 and 184 and 148 at 16384; with blocks of 64 and 128 tokens, where rows begin anywhere, 79 and
    91 at 4871.
    """
    T, D = case.size("T", "D")
    whole = rows_are_aligned(case, T)
    BLOCK_M = 32 if whole and T / multiprocessors(device) >= 80 and case.itemsize == 2 else 16
    BLOCK_N = 128 if whole and case.itemsize == 2 else 64
    if padded(D) > 128 or (
        is_ieee(case) and padded(D) > 64
    ):  # more would spill: IEEE products have their operands in registers
        BLOCK_N = 32
    BLOCK_M, BLOCK_N = min(BLOCK_M, padded(T)), min(BLOCK_N, padded(T))
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
    return tile | {"num_warps": 4, "num_stages": most_stages(device, 4, functools.partial(flash_bytes, case, tile))}


def flash_bytes(case, tile, num_stages):
    """Shared memory of `flash`: a tile of att and a block of v a stage, and room to rearrange."""
    stage = tile["BLOCK_N"] * (tile["BLOCK_M"] + padded(case.sizes["D"])) * case.itemsize
    return num_stages * stage + (16 << 10)


def whole_row_bytes(case, BLOCK_M):
    """Shared memory of `whole_row`: all of v and the probabilities, and some to reduce."""
    T, D = padded(case.sizes["T"]), padded(case.sizes["D"])
    return T * (D + BLOCK_M) * case.itemsize + (4 << 10)


@triton.jit
def scores_of(att, rows, columns, n, T: tl.constexpr, MASKED: tl.constexpr):
    """The scores (rows, columns) in units of 1 / log2(e), -inf where hidden (if MASKED: else all are visible).

    What is loaded is masked by whole groups of 16 columns, so that vectors stay whole.
    """
    place = att + rows.to(tl.int64)[:, None] * T + columns[None, :]
    if MASKED:
        seen = tl.minimum(rows, T - 1)[:, None]
        touched = (columns[None, :] // 16 <= seen // 16) & (columns[None, :] < T) & (rows[:, None] < T)
        s = tl.load(place, mask=touched, other=float("-inf")).to(tl.float32)
        s = tl.where((columns[None, :] >= n) & (columns[None, :] <= rows[:, None]), s, float("-inf"))
    else:
        s = tl.load(place, mask=rows[:, None] < T, other=0.0).to(tl.float32)
    return s * LOG2_E


@triton.jit
def values_of(v, tokens, d, n, end, D: tl.constexpr, MASKED: tl.constexpr):
    """The rows (tokens, BLOCK_D) of v, 0 before n and from `end` on (if MASKED) and past D."""
    inside = d[None, :] < D
    if MASKED:
        inside = inside & ((tokens >= n) & (tokens < end))[:, None]
    return tl.load(v + tokens.to(tl.int64)[:, None] * D + d[None, :], mask=inside, other=0.0)


@triton.jit
def advance(
    acc, total, highest, att, v, rows, start, d, n,
    T: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums after the tokens start … start + BLOCK_N. `highest` is at least the lowest finite number, from which a first
    -inf is as far as from any other: -inf - -inf would be NaN."""
    tokens = start + tl.arange(0, BLOCK_N)
    s = scores_of(att, rows, tokens, n, T, MASKED)
    higher = tl.maximum(highest, tl.max(s, 1))
    p = tl.exp2(s - higher[:, None])
    rescale = tl.exp2(highest - higher)
    total = total * rescale + tl.sum(p, 1)
    values = values_of(v, tokens, d, n, T, D, MASKED)
    acc = tl.dot(p.to(values.dtype), values, acc * rescale[:, None], input_precision=PRECISION)
    return acc, total, higher


@triton.jit
def finish(acc, total, y, rows, d, n, T: tl.constexpr, D: tl.constexpr):
    """Writes acc / total, and 0 in rows of padding."""
    z = tl.where(rows[:, None] < n, 0.0, acc / total[:, None])
    inside = (rows[:, None] < T) & (d[None, :] < D)
    tl.store(y + rows.to(tl.int64)[:, None] * D + d[None, :], z.to(y.dtype.element_ty), mask=inside)


@triton.jit
def flash(
    att, v, n_padd, y,
    T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows: first the blocks that all of them see whole, then the first block and those on the diagonal."""
    first = ((T + BLOCK_M - 1) // BLOCK_M - 1 - tl.program_id(0)) * BLOCK_M
    n = first_visible(n_padd, 0, T)
    rows, d = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    begin, end = n // 16 * 16, tl.minimum(first + BLOCK_M, T)
    diagonal = begin + tl.maximum((first + 1 - begin) // BLOCK_N, 1) * BLOCK_N
    for j in range(begin + BLOCK_N, diagonal, BLOCK_N):
        acc, total, highest = advance(acc, total, highest, att, v, rows, j, d, n, T, D, PRECISION, BLOCK_N, False)
    if begin < end:
        for j in range(diagonal - BLOCK_N, end, BLOCK_N):
            start = tl.where(j < diagonal, begin, j)
            acc, total, highest = advance(
                acc, total, highest, att, v, rows, start, d, n, T, D, PRECISION, BLOCK_N, True
            )
    finish(acc, total, y, rows, d, n, T, D)


@triton.jit
def whole_row(
    att, v, n_padd, y,
    T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, N_OCOLS: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows, and all of v."""
    first = ((T + BLOCK_M - 1) // BLOCK_M - 1 - tl.program_id(0)) * BLOCK_M
    n = first_visible(n_padd, 0, T)
    rows, d, tokens = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_T)
    s = scores_of(att, rows, tokens, n, T, True)
    highest = tl.maximum(tl.max(s, 1), LOWEST)
    p = tl.exp2(s - highest[:, None])
    if N_OCOLS == BLOCK_D:
        values = values_of(v, tokens, d, n, tl.minimum(first + BLOCK_M, T), D, True)
        acc = tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
        finish(acc, tl.sum(p, 1), y, rows, d, n, T, D)
    else:
        total = tl.sum(p, 1)
        for column in range(0, BLOCK_D, N_OCOLS):
            o = column + tl.arange(0, N_OCOLS)
            values = values_of(v, tokens, o, n, tl.minimum(first + BLOCK_M, T), D, True)
            part = tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
            finish(part, total, y, rows, o, n, T, D)
