"""embedding's backward modes in Triton by atomic additions: what triton.py and jax_triton.py launch there, and the choice of tiles.

Forward, one launch, leaves the row of each look-up behind, (M, F) int32, so that nothing is hashed twice. Backward:

    clear       dtables is 0: most rows of large tables occur nowhere.
    add         a program has some samples of one feature. A table of few rows gets thousands of additions to each: there a program sums all
                its samples first, as the product of a matrix of zeros and ones (which sample has which row) with dy, and adds
                each row once. In a longer table the first rows have a few samples in a hundred, which atomic additions bear.
    narrow      of 16 bits: sums are float32 in an array of their own, and are rounded once.

A look-up of an id out of range adds to the last row of the tables. Where dy is NaN or infinite, all rows of a short table become NaN, not
one alone. The order of additions differs from call to call: `deterministic` (_triton_sorted.py) has one order.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import multiprocessors
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit
from implementations.embedding import _triton_sorted

VARIANTS = ("atomic", "deterministic")  # of the backward modes alone
STREAMED = 4096  # elements that a program fills or converts at a time


def config(case, variant, device):
    """The tunables of `add`: BLOCK samples at a time, HOT rows of a table that are summed in the program, by it over SPAN blocks; or those
    of `walk`."""
    if variant == "deterministic":
        return _triton_sorted.config(case)
    M, F, D = case.size("M", "F", "D")
    BLOCK_D = max(16, min(128, triton.next_power_of_2(D)))
    HOT = 16 if case.dtype == "float32" else 32  # float32 multiplies without tensor cores
    BLOCK = 64 if BLOCK_D <= 32 else 32
    SPAN = 16
    while SPAN > 1 and F * triton.cdiv(M, BLOCK * SPAN) < 4 * multiprocessors(device):
        SPAN //= 2
    return prefixed(
        {"add": {"BLOCK": BLOCK, "SPAN": SPAN, "HOT": HOT, "BLOCK_D": BLOCK_D, "num_warps": 4, "num_stages": 2}}
    )


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if variant == "deterministic":
        return _triton_sorted.fits(case, device, config)
    own = by_launch(config)["add"]
    values = (own["BLOCK"] + own["HOT"]) * own["BLOCK_D"] + own["BLOCK"] * own["HOT"]
    shared = own["num_stages"] * own["BLOCK"] * own["BLOCK_D"] * 4
    return first_reason({"add": misfit(device, own, ("BLOCK", "HOT", "BLOCK_D"), values, shared)})


def launches(case, variant, device, config):
    """`clear`, `add` and, of 16 bits, `narrow`; or `clear` and what sorts."""
    if variant == "deterministic":
        return clear_launch(device, TYPES[case.dtype]), *_triton_sorted.launches(case, config)
    M, F, D = case.size("M", "F", "D")
    own, pointer = by_launch(config)["add"], TYPES[case.dtype]
    grid = (F * triton.cdiv(M, own["BLOCK"] * own["SPAN"]), triton.cdiv(D, own["BLOCK_D"]))
    signature = {"rows": "*i32", "offsets": "*i64", "dy": pointer, "M": "i32", "sums": "*fp32", "dtables": "*fp32"}
    found = [clear_launch(device, "*fp32"), launch_with(own, add, signature, {"F": F, "D": D}, grid)]
    if case.dtype != "float32":
        signature = {"sums": "*fp32", "count": "i64", "dtables": pointer}
        found.append(launch_with({"num_warps": 4}, narrow, signature, {"BLOCK": STREAMED}, streams(device)))
    return tuple(found)


def clear_launch(device, pointer):
    """`clear` of as many elements as there are."""
    return launch_with({"num_warps": 4}, clear, {"count": "i64", "x": pointer}, {"BLOCK": STREAMED}, streams(device))


def streams(device):
    """The grid of programs that go through an array together, however long it is."""
    return (8 * multiprocessors(device),)


@triton.jit(do_not_specialize=["count"])
def clear(count, x, BLOCK: tl.constexpr):
    """x = 0."""
    zeros = tl.zeros([BLOCK], tl.float32).to(x.dtype.element_ty)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.program_id(0), tl.cdiv(count, BLOCK), tl.num_programs(0)):
        tl.store(x + at, zeros, mask=at < count)
        at += tl.num_programs(0) * BLOCK


@triton.jit(do_not_specialize=["count"])
def narrow(sums, count, dtables, BLOCK: tl.constexpr):
    """dtables = sums in the storage dtype."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.program_id(0), tl.cdiv(count, BLOCK), tl.num_programs(0)):
        values = tl.load(sums + at, mask=at < count, eviction_policy="evict_first")
        tl.store(dtables + at, values.to(dtables.dtype.element_ty), mask=at < count)
        at += tl.num_programs(0) * BLOCK


@triton.jit(do_not_specialize=["M"])
def add(
    rows, offsets, dy, M, sums, dtables,
    F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, HOT: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """SPAN blocks of samples of one feature, BLOCK_D columns. `sums` and `dtables` are the same memory."""
    feature = tl.program_id(0) % F
    first = (tl.program_id(0) // F).to(tl.int64) * (BLOCK * SPAN)
    begin, end = tl.load(offsets + feature), tl.load(offsets + feature + 1)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = d < D
    if end - begin <= HOT:
        hot = begin + tl.arange(0, HOT)
        acc = tl.zeros([HOT, BLOCK_D], tl.float32)
        for block in range(SPAN):
            samples = first + block * BLOCK + tl.arange(0, BLOCK)
            row = tl.load(rows + samples * F + feature, mask=samples < M, other=-1)
            mask = (samples < M)[:, None] & inside[None, :]
            behind = tl.load(dy + (samples * F + feature)[:, None] * D + d[None, :], mask=mask, other=0.0)
            acc = tl.dot((hot[:, None] == row[None, :]).to(behind.dtype), behind, acc, input_precision="ieee")
            lost = mask & (row >= end)[:, None]
            tl.atomic_add(
                sums + row.to(tl.int64)[:, None] * D + d[None, :], behind.to(tl.float32), mask=lost, sem="relaxed"
            )
        mask = (hot < end)[:, None] & inside[None, :]
        tl.atomic_add(sums + hot[:, None] * D + d[None, :], acc, mask=mask, sem="relaxed")
    else:
        for block in range(SPAN):
            samples = first + block * BLOCK + tl.arange(0, BLOCK)
            row = tl.load(rows + samples * F + feature, mask=samples < M, other=0).to(tl.int64)
            mask = (samples < M)[:, None] & inside[None, :]
            behind = tl.load(dy + (samples * F + feature)[:, None] * D + d[None, :], mask=mask, other=0.0)
            tl.atomic_add(sums + row[:, None] * D + d[None, :], behind.to(tl.float32), mask=mask, sem="relaxed")
