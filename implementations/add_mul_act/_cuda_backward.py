"""add_mul_act's backward modes in CUDA C++: the launches of cuda_backward.cu, which says what they are.

UNROLL  vectors of each array that a thread asks for at once, and has at least
LANES   places of a group that a block has; all threads: FLAT, with a group as long as all blocks together
BLOCKS  of a multiprocessor
"""

from pathlib import Path
from typing import NamedTuple

from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, not_one_of, of_launch, prefixed
from implementations._shared.gpu import VECTOR_BYTES, multiprocessors
from implementations.add_mul_act._rows import rows_of_a_group, slope_is_from_y

FILE = Path(__file__).with_name("cuda_backward.cu")
THREADS = 256
UNROLLS, LANES, MOST_BLOCKS = (1, 2, 3, 4, 8), (4, 8, 16, 32, THREADS), 8
FEW_ROWS = 256  # up to which a block has all rows of few columns: parts would take a launch more


class Shares(NamedTuple):
    """Who has what: vectors of a group, blocks that have its places, vectors from one of a thread to its next, blocks in all, rows of parts."""

    group: int
    across: int
    stride: int
    blocks: int
    parts: int


def _vectors(case):
    """(rows of the least group, its vectors, vectors of a matrix, the last one perhaps not whole)."""
    M, N = case.size("M", "N")
    size, rows = VECTOR_BYTES // case.itemsize, rows_of_a_group(case)
    return rows, rows * N // size, -(-M * N // size)


def shares(case, device, config):
    """Who has what with the config of `gradient`. A thread has UNROLL vectors at least, so that parts are few."""
    rows, least, total = _vectors(case)
    lanes, unroll, most = config["LANES"], config["UNROLL"], config["BLOCKS"] * multiprocessors(device)
    if lanes == THREADS:
        each = max(unroll, -(-total // (most * THREADS)))
        one = total <= unroll * THREADS and least <= THREADS
        stride = THREADS // least * least if one else -(-total // (each * least)) * least
        blocks = -(-min(stride, total) // THREADS)
        return Shares(stride, blocks, stride, blocks, blocks)
    across, deep = -(-min(least, total) // lanes), THREADS // lanes
    tiles = -(-total // (least * deep))
    down = -(-tiles // max(unroll, -(-tiles // max(1, most // across))))
    return Shares(least, across, down * deep * least, across * down, min(down * rows, case.sizes["M"]))


def config(case, device):
    """The tunables: one launch of few rows, or of little; else as many blocks as a multiprocessor has registers for. FLAT where a group has few
    places, or where parts of its rows would be more than those of blocks."""
    M, sms = case.sizes["M"], multiprocessors(device)
    rows, least, total = _vectors(case)
    if M <= FEW_ROWS and rows == 1:
        lanes = next((n for n in (32, 16, 8) if -(-least // n) >= sms), 4)
        return _config(4, lanes, 1)
    if least <= THREADS and total <= UNROLLS[-1] * THREADS:
        return _config(next(n for n in UNROLLS if total <= n * THREADS), THREADS, 1)
    across = -(-least // 32)
    flat = case.sizes["N"] <= _flat_columns(case) and (rows > across or across * 32 > 1.125 * least)
    blocks = 3 if slope_is_from_y(case) or case.options["activation"] == "none" else 2
    unroll = min(4, max(2, -(-total // (blocks * sms * THREADS))))
    return _config(unroll, THREADS if flat else 32, blocks)


def _config(unroll, lanes, blocks):
    return prefixed("gradient", {"UNROLL": unroll, "LANES": lanes, "BLOCKS": blocks})


def _flat_columns(case):
    """The most columns that a block of all places has together."""
    return THREADS * VECTOR_BYTES // case.itemsize


def fits(case, config):
    """Why a config cannot run, or None."""
    own, N, most = of_launch("gradient", config), case.sizes["N"], _flat_columns(case)
    if own["LANES"] == THREADS and most < N:
        return f"LANES={THREADS}: a block has {most} elements side by side, a row {N}"
    return (
        not_one_of("UNROLL", own["UNROLL"], UNROLLS)
        or not_one_of("LANES", own["LANES"], LANES)
        or not_one_of("BLOCKS", own["BLOCKS"], range(1, MOST_BLOCKS + 1))
    )


def launches(case, device, config):
    """`gradient`, and `sum_parts` where there are parts."""
    own = of_launch("gradient", config)
    (M, N), size, T = case.size("M", "N"), VECTOR_BYTES // case.itemsize, TYPES[case.dtype]
    group, across, stride, blocks, parts = shares(case, device, own)
    flat = own["LANES"] == THREADS
    program = instance(FILE, "gradient", T, case.options["activation"].upper(), flat, own["UNROLL"])
    rest = M * N // size % stride if M * N % size else -1
    sizes = M * N, N, group, across, own["LANES"], stride, rest
    first = Launch(program, blocks, THREADS, dtypes=((case.dtype,) * 8 + ("float32",)), sizes=sizes)
    if parts == 1:
        return (first,)
    columns = 32 if multiprocessors(device) <= 2 * -(-N // 32) else 8
    program = instance(FILE, "sum_parts", T, columns)
    last = Launch(program, -(-N // columns), THREADS, dtypes=("float32", case.dtype), sizes=(parts, N))
    return in_turn(first, last)


def build(case, device, config, call):
    """(forward, backward) of `call` and the launches behind it."""
    first, *more = launches(case, device, config)
    M, N = case.size("M", "N")
    from_y, parts = slope_is_from_y(case), shares(case, device, of_launch("gradient", config)).parts
    # of the inputs, x being y
    kept = (0, 2) if from_y else (2,) if case.options["activation"] == "none" else (0, 1, 2, 3)
    sums = {8: (parts, N)} if more else {7: (N,)}
    absent = [place for place in (0, 1, 3, 7, 8) if place not in (*kept, *sums)]
    gradient = first.returning({5: (M, N), 6: (M, N)} | sums, absent=absent)
    add_up = more[0].returning({1: (N,)}) if more else None

    def forward(x, z, multiplier, b):
        y = call(x, z, multiplier, b)
        given = y if from_y else x, z, multiplier, b
        return y, tuple(given[place] for place in kept)

    def backward(residuals, dy):
        dx, dz, db = gradient(*residuals, dy)
        return dx, dz, add_up(db) if add_up else db

    return forward, backward
