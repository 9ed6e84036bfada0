"""Causal attention with padding in Triton: kernels that padded_attention and shcsa launch, and the choice of their tiles.

    flash       a program has a tile of rows of one head and goes through the tokens that they see in blocks, with a running
                maximum and sum for each row. Blocks begin at token n_padd, so that padding is never read and only the blocks
                on the diagonal have a mask.
    whole_row   a program has a tile of rows and all their scores at once: one product, one softmax, one product. No step
                waits for another block's maximum, which is what makes a short sequence slow; the whole of k must fit. The second
                product is of N_OCOLS columns of v at a time, all of them unless told otherwise.

Both count scores in units of 1 / log2(e), so that an exponential is one multiplication and exp2. Probabilities are rounded to
the storage dtype for the second product and divided by their sum after it. Long rows, the last ones of a head, begin first.
T and D are compile-time constants, n_padd is read from the device.
"""

import functools
import math

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee, multiprocessors, shared_memory
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import LEAST_DOT, misfit, most_stages, narrowed_to_fit
from implementations._shared.triton.matmul import padded
from implementations._shared.triton.softmax import LOWEST

TUNABLES = {
    "flash": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3, 4),
    },
    "whole_row": {"BLOCK_M": (16, 32, 64), "N_OCOLS": (16, 32, 64, 128, 256), "num_warps": (4, 8, 16)},
}  # fmt: skip

WIDEST = 256  # columns of a row of q that a program can hold
LOG2_E = math.log2(math.e)
IN_REGISTERS = 2048  # elements of an operand without tensor cores: more would spill
IN_REGISTERS_REASON = (
    "IEEE float32 multiplies from registers, which do not hold the whole operand: flash or precision=tf32"
)


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if case.sizes["D"] > WIDEST:
        return f"rows of more than {WIDEST} elements do not fit in a program's registers"
    if variant == "whole_row" and (reason := row_reason(case, device)):
        return reason
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
    """The one launch of every variant: a program for each tile of rows of each head."""
    B, H, T, D = case.size("B", "H", "T", "D")
    pointer = TYPES[case.dtype]
    signature = dict.fromkeys(("q", "k", "v"), pointer) | {"n_padd": "*i32", "y": pointer}
    options = {
        "H": H,
        "T": T,
        "D": D,
        "BLOCK_D": padded(D),
        "SCALE": LOG2_E / math.sqrt(D),
        "PRECISION": case.precision,
    }
    if variant == "whole_row":
        options["BLOCK_T"] = padded(T)
    grid = (B * H * triton.cdiv(T, config["BLOCK_M"]),)
    return (launch_with(config, flash if variant == "flash" else whole_row, signature, options, grid),)


def flash_config(case, device):
    """The tile of `flash`, its warps and its stages: many rows read k and v less often, few rows fill a GPU with few heads."""
    B, H, T, D = case.size("B", "H", "T", "D")
    wide = padded(D) > 64
    if case.dtype != "float32":
        BLOCK_M, BLOCK_N = (128, 64) if wide else (128, 128)
        if device.capability[0] == 9 and not wide:
            # an H200 took 663 µs with 64 × 64 at 8×16×4096×64 in bfloat16, 763 with 64 × 128, 870 with 128 × 128; at
            # 12×1024×64, where fewer blocks wait, 15.7, 15.0 and 16.9
            BLOCK_M, BLOCK_N = 64, 64 if B * H * triton.cdiv(T, 64) >= 8 * multiprocessors(device) else 128
    elif case.precision == "tf32":
        BLOCK_M, BLOCK_N = (64, 32) if wide else (128, 64)
    else:
        # without tensor cores operands pass through registers: more would spill
        BLOCK_M, BLOCK_N = 64, 16 if wide else 32
    if padded(D) > 128:
        BLOCK_M, BLOCK_N = BLOCK_M // 2, min(BLOCK_N, 32)
    BLOCK_M = min(BLOCK_M, padded(T))
    while BLOCK_M > 16 and B * H * triton.cdiv(T, BLOCK_M) < multiprocessors(device) // 2:
        BLOCK_M //= 2
    BLOCK_N = min(BLOCK_N, padded(T))
    # a warpgroup of Hopper multiplies 64 rows; sums in registers alone want fewer rows a warp
    in_registers = case.dtype == "float32" and (case.precision == "ieee" or device.capability < (9, 0))
    num_warps = 8 if BLOCK_M == 128 or (BLOCK_M == 64 and in_registers) else 4
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
    num_stages = most_stages(device, 3, functools.partial(flash_bytes, case, tile))
    own = tile | {"num_warps": num_warps, "num_stages": num_stages}
    return narrowed_to_fit(own, ("BLOCK_M", "BLOCK_N"), functools.partial(fits, case, "flash", device))


def flash_bytes(case, tile, num_stages):
    """Shared memory of `flash`: q, a block of k and one of v a stage, and room to rearrange."""
    rows = tile["BLOCK_M"] + num_stages * 2 * tile["BLOCK_N"]
    return rows * padded(case.sizes["D"]) * case.itemsize + (16 << 10)


def whole_row_config(case):
    """The tunables of `whole_row`: 16 rows, all columns of v, and warps for 64 scores a thread."""
    num_warps = min(16, max(4, 16 * padded(case.sizes["T"]) // (64 * 32)))
    return {"BLOCK_M": 16, "N_OCOLS": padded(case.sizes["D"]), "num_warps": num_warps}


def whole_row_bytes(case, BLOCK_M):
    """Shared memory of `whole_row`: all of k, q and the probabilities, and some to reduce."""
    T, D = padded(case.sizes["T"]), padded(case.sizes["D"])
    return ((T + BLOCK_M) * D + BLOCK_M * T) * case.itemsize + (4 << 10)


def row_reason(case, device):
    """Why `whole_row` cannot hold all of k, or None."""
    T, D = case.size("T", "D")
    if T > 2048:
        return "the scores of 16 rows of more than 2048 tokens do not fit in a program's registers: flash takes them"
    if is_ieee(case) and padded(T) * padded(D) > IN_REGISTERS:
        return IN_REGISTERS_REASON
    if device.type == "cuda" and whole_row_bytes(case, LEAST_DOT) > shared_memory(device):
        return f"k ({T} × {D}) does not fit in a program's shared memory: flash takes it"
    return None


@triton.jit
def first_visible(n_padd, b, T: tl.constexpr):
    """The first token of sequence b that is none of padding."""
    return tl.minimum(tl.maximum(tl.load(n_padd + b), 0), T)


@triton.jit
def tokens_of(x, rows, d, T: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr):
    """The rows (…, BLOCK_D) of x (T, D), 0 past T (if MASKED) and past D."""
    inside = d[None, :] < D
    if MASKED:
        inside = inside & (rows[:, None] < T)
    return tl.load(x + rows.to(tl.int64)[:, None] * D + d[None, :], mask=inside, other=0.0)


@triton.jit
def advance(
    acc, total, highest, q, k, v, rows, start, d,
    T: tl.constexpr, D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums after the tokens start … start + BLOCK_N. `highest` is at least the lowest finite number, from which a first
    -inf is as far as from any other: -inf - -inf would be NaN."""
    tokens = start + tl.arange(0, BLOCK_N)
    keys = tokens_of(k, tokens, d, T, D, MASKED)
    s = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    if MASKED:
        s = tl.where(tokens[None, :] <= rows[:, None], s, float("-inf"))
    higher = tl.maximum(highest, tl.max(s, 1) * SCALE)
    p = tl.exp2(s * SCALE - higher[:, None])
    rescale = tl.exp2(highest - higher)
    total = total * rescale + tl.sum(p, 1)
    values = tokens_of(v, tokens, d, T, D, MASKED)
    acc = tl.dot(p.to(values.dtype), values, acc * rescale[:, None], input_precision=PRECISION)
    return acc, total, higher


@triton.jit
def attended(
    q, k, v, rows, first, d, n,
    T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The weighted values (BLOCK_M, BLOCK_D) of the rows `first` … of a head, not yet divided; the sums and the maxima that
    belong to them (BLOCK_M,)."""
    q_tile = tokens_of(q, rows, d, T, D, True)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    # all rows see the whole of the blocks before `diagonal`
    diagonal = n + tl.maximum(first + 1 - n, 0) // BLOCK_N * BLOCK_N
    for j in range(n, diagonal, BLOCK_N):
        acc, total, highest = advance(
            acc, total, highest, q_tile, k, v, rows, j, d, T, D, SCALE, PRECISION, BLOCK_N, False
        )
    for j in range(diagonal, tl.minimum(first + BLOCK_M, T), BLOCK_N):
        acc, total, highest = advance(
            acc, total, highest, q_tile, k, v, rows, j, d, T, D, SCALE, PRECISION, BLOCK_N, True
        )
    return acc, total, highest


@triton.jit
def store_rows(y, values, rows, d, T: tl.constexpr, D: tl.constexpr):
    """Rows of a head, those below T."""
    inside = (rows[:, None] < T) & (d[None, :] < D)
    tl.store(y + rows.to(tl.int64)[:, None] * D + d[None, :], values.to(y.dtype.element_ty), mask=inside)


@triton.jit
def flash(
    q, k, v, n_padd, y,
    H: tl.constexpr, T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of a head."""
    TILES: tl.constexpr = (T + BLOCK_M - 1) // BLOCK_M
    head = tl.program_id(0) // TILES
    first = (TILES - 1 - tl.program_id(0) % TILES) * BLOCK_M
    n = first_visible(n_padd, head // H, T)
    start = head.to(tl.int64) * (T * D)
    rows, d = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    acc, total, _ = attended(
        q + start, k + start, v + start, rows, first, d, n, T, D, BLOCK_D, SCALE, PRECISION, BLOCK_M, BLOCK_N
    )
    store_rows(y + start, tl.where(rows[:, None] < n, 0.0, acc / total[:, None]), rows, d, T, D)


@triton.jit
def whole_row(
    q, k, v, n_padd, y,
    H: tl.constexpr, T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, N_OCOLS: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of a head, and all its tokens; those that no row of the tile sees are not read."""
    TILES: tl.constexpr = (T + BLOCK_M - 1) // BLOCK_M
    head = tl.program_id(0) // TILES
    first = (TILES - 1 - tl.program_id(0) % TILES) * BLOCK_M
    n = first_visible(n_padd, head // H, T)
    start = head.to(tl.int64) * (T * D)
    q, k, v, y = q + start, k + start, v + start, y + start
    rows, d, tokens = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_T)

    q_tile = tokens_of(q, rows, d, T, D, True)
    read = (tokens >= n) & (tokens < tl.minimum(first + BLOCK_M, T))
    read = read[:, None] & (d[None, :] < D)
    places = tokens[:, None] * D + d[None, :]  # whole_row is for sequences far below 2^31 elements
    s = tl.dot(q_tile, tl.trans(tl.load(k + places, mask=read, other=0.0)), input_precision=PRECISION)
    s = tl.where((tokens[None, :] >= n) & (tokens[None, :] <= rows[:, None]), s, float("-inf"))
    highest = tl.maximum(tl.max(s, 1) * SCALE, LOWEST)
    p = tl.exp2(s * SCALE - highest[:, None])
    total = tl.sum(p, 1)
    if N_OCOLS == BLOCK_D:
        values = tl.load(v + places, mask=read, other=0.0)
        acc = tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
        z = tl.where(rows[:, None] < n, 0.0, acc / total[:, None])
        inside = (rows[:, None] < T) & (d[None, :] < D)
        tl.store(y + rows.to(tl.int64)[:, None] * D + d[None, :], z.to(y.dtype.element_ty), mask=inside)
    else:
        kept = (tokens >= n) & (tokens < tl.minimum(first + BLOCK_M, T))
        for column in range(0, BLOCK_D, N_OCOLS):
            o = column + tl.arange(0, N_OCOLS)
            values = tl.load(v + tokens[:, None] * D + o[None, :], mask=kept[:, None] & (o[None, :] < D), other=0.0)
            part = tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
            part = tl.where(rows[:, None] < n, 0.0, part / total[:, None])
            inside_part = (rows[:, None] < T) & (o[None, :] < D)
            tl.store(y + rows.to(tl.int64)[:, None] * D + o[None, :], part.to(y.dtype.element_ty), mask=inside_part)
