"""Hashed look-ups in Triton: the kernels of embedding, the choice of their tiles, and the hashings for kernels that look up by
themselves. `case` is one of embedding, or a part of a model's.

    modulus, improved   a program has BLOCK look-ups side by side in the output, of any features. It finds their table rows
                        and copies them, so that what it writes is one piece of memory. Where rows are no whole vectors of
                        16 bytes, that piece has ELEMENTS, which are, and BLOCK are the look-ups that they can be of.
    naive               a program has BLOCK samples of one feature and compares them with BLOCK_LIST known values at a time.

An id outside of 0 … 2³² - 1 gets row offsets[F], which is NaN. Look-ups past the last repeat the last and are not stored.
"""

import triton
import triton.language as tl

from implementations._shared.dlrm import hashing_skip
from implementations._shared.gpu import multiprocessors, rows_are_aligned
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit

TUNABLES = {
    ("modulus", "improved"): {"BLOCK": (16, 32, 64, 128, 256), "BLOCK_D": (8, 16, 32, 64, 128, 256), "num_warps": (1, 2, 4, 8)},
    "naive": {
        "BLOCK": (16, 32, 64, 128), "BLOCK_LIST": (64, 128, 256), "BLOCK_D": (8, 16, 32, 64, 128), "num_warps": (2, 4, 8),
        "num_stages": (1, 2, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    M, F, V = case.size("M", "F", "V")
    if variant == "naive" and device.type == "cpu" and M * F * V > 2e7:
        return "interpreted on the CPU, where so many comparisons take minutes: try case=odd"
    return hashing_skip(case, variant, device)


def config(case, variant, device):
    """The tunables of a variant: a tile of 4096 elements, fewer where that leaves multiprocessors without two programs; and
    warps."""
    M, F, D = case.size("M", "F", "D")
    BLOCK_D = min(triton.next_power_of_2(D), 256)
    if variant == "naive":
        return {"BLOCK": 32, "BLOCK_LIST": 128, "BLOCK_D": min(BLOCK_D, 128), "num_warps": 4, "num_stages": 2}
    BLOCK = max(16, 4096 // BLOCK_D)
    while BLOCK > 16 and triton.cdiv(M * F, BLOCK) < 2 * multiprocessors(device):
        BLOCK //= 2
    return {"BLOCK": BLOCK, "BLOCK_D": BLOCK_D, "num_warps": max(1, min(4, BLOCK * BLOCK_D // 512))}


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    values, shared = config["BLOCK"] * config["BLOCK_D"], 0
    if variant == "naive":  # 64-bit values of the list, and the least position for each pair
        values = max(values, config["BLOCK"] * config["BLOCK_LIST"])
        shared = config["num_stages"] * config["BLOCK_LIST"] * 8
    return misfit(device, config, values=values, shared=shared)


def search_steps(V):
    """Halvings until nothing is left of V - 1 known values."""
    return (V - 1).bit_length()


def elements(case, config):
    """How many elements of the output a program copies, or 0 where it copies whole rows: BLOCK look-ups hold so many wherever the first
    begins."""
    D, BLOCK = case.sizes["D"], config["BLOCK"]
    if rows_are_aligned(case, D):
        return 0
    held = max(1, (BLOCK - 1) * D)
    return min(BLOCK * config["BLOCK_D"], 1 << (held.bit_length() - 1))


def launches(case, variant, device, config):
    """The one launch of every variant."""
    M, F, V, D = case.size("M", "F", "V", "D")
    pointer = TYPES[case.dtype]
    signature = {"ids": "*i64", "tables": pointer, "offsets": "*i64"}
    constexprs = {"F": F, "D": D}
    if variant == "naive":
        signature |= {"known": "*i64", "M": "i32", "y": pointer}
        return (launch_with(config, naive, signature, constexprs, (F * triton.cdiv(M, config["BLOCK"]),)),)
    if variant == "improved":
        signature |= {"keys": "*i32", "positions": "*i32"}
        constexprs |= {"STEPS": search_steps(V)}
    signature |= {"count": "i32" if M * F < 2**31 else "i64", "y": pointer}
    kernel, part = improved if variant == "improved" else modulus, elements(case, config)
    constexprs["ELEMENTS"] = part
    programs = triton.cdiv(M * F * D, part) if part else triton.cdiv(M * F, config["BLOCK"])
    return (launch_with(config, kernel, signature, constexprs, (programs,)),)


@triton.jit
def hashed_rows(id, feature, offsets, F: tl.constexpr):
    """The table rows of ids by the modulus hash: (id + 1) mod V_f."""
    begin = tl.load(offsets + feature)
    size = (tl.load(offsets + feature + 1) - begin).to(tl.uint32)
    position = id.to(tl.uint32) % size + 1  # a division in 32 bits: 1 is added behind it
    rows = begin + tl.where(position == size, 0, position).to(tl.int64)
    return tl.where((id >> 32) == 0, rows, tl.load(offsets + F))


@triton.jit
def found_rows(id, feature, offsets, keys, positions, F: tl.constexpr, STEPS: tl.constexpr):
    """The table rows of ids by binary search for the first of the feature's sorted values that is not below the id; its position is the
    row."""
    begin = tl.load(offsets + feature)
    known = (tl.load(offsets + feature + 1) - begin - 1).to(tl.int32)
    key = (id - 2147483648).to(tl.int32)  # in the order of the ids
    low = tl.zeros_like(key)
    left = known
    for _ in range(STEPS):
        half = left // 2
        below = tl.load(keys + begin + low + half, mask=left > 0, other=2147483647) < key
        low = tl.where(below, low + half + 1, low)
        left = tl.where(below, left - half - 1, half)
    found = (low < known) & (tl.load(keys + begin + low) == key)  # low is `known` at most, which is in the list
    position = tl.load(positions + begin + low, mask=found, other=0)
    rows = begin + tl.where(found, position, known)
    return tl.where((id >> 32) == 0, rows, tl.load(offsets + F))


@triton.jit
def copy_rows(tables, rows, y, lookups, inside, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """y[lookup] = tables[row], D elements each, where `inside`."""
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        vectors = tl.load(tables + rows[:, None] * D + d[None, :], mask=mask)
        # y is read by nobody here: it should displace no table row in L2
        tl.store(y + lookups[:, None] * D + d[None, :], vectors, mask=mask, cache_modifier=".cs")


@triton.jit
def own_lookups(D: tl.constexpr, BLOCK: tl.constexpr, ELEMENTS: tl.constexpr):
    """Those of a program: BLOCK of its own, or the first is the one that its first element is of."""
    program = tl.program_id(0).to(tl.int64)
    first = program * BLOCK if ELEMENTS == 0 else program * ELEMENTS // D
    return first + tl.arange(0, BLOCK)


@triton.jit
def copy_own(tables, rows, y, lookups, count, D: tl.constexpr, BLOCK_D: tl.constexpr, ELEMENTS: tl.constexpr):
    """The rows of `own_lookups` into y, of `count` look-ups in all."""
    if ELEMENTS == 0:
        copy_rows(tables, rows, y, lookups, lookups < count, D, BLOCK_D)
    else:
        copy_elements(tables, rows, y, count.to(tl.int64) * D, D, ELEMENTS)


@triton.jit
def copy_elements(tables, rows, y, total, D: tl.constexpr, ELEMENTS: tl.constexpr):
    """The program's ELEMENTS of y, `total` in all. Only the last program compares them with `total`, which no compiler knows to be a
    multiple of a vector: the others store vectors."""
    begin = tl.program_id(0).to(tl.int64) * ELEMENTS
    place = (begin % D).to(tl.int32) + tl.arange(0, ELEMENTS)
    values = tl.load(tables + tl.gather(rows, place // D, 0) * D + place % D)
    to = y + begin + tl.arange(0, ELEMENTS)
    if begin + ELEMENTS <= total:
        tl.store(to, values, cache_modifier=".cs")
    else:
        tl.store(to, values, mask=begin + tl.arange(0, ELEMENTS) < total, cache_modifier=".cs")


@triton.jit(do_not_specialize=["count"])
def modulus(
    ids, tables, offsets, count, y,
    F: tl.constexpr, D: tl.constexpr, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Row (id + 1) mod V_f."""
    lookups = own_lookups(D, BLOCK, ELEMENTS)
    at = tl.minimum(lookups, count - 1)
    id = tl.load(ids + at)
    feature = at % F
    rows = hashed_rows(id, feature, offsets, F)
    copy_own(tables, rows, y, lookups, count, D, BLOCK_D, ELEMENTS)


@triton.jit(do_not_specialize=["count"])
def improved(
    ids, tables, offsets, keys, positions, count, y,
    F: tl.constexpr, D: tl.constexpr, STEPS: tl.constexpr, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The place in the feature's sorted values."""
    lookups = own_lookups(D, BLOCK, ELEMENTS)
    at = tl.minimum(lookups, count - 1)
    id = tl.load(ids + at)
    feature = at % F
    rows = found_rows(id, feature, offsets, keys, positions, F, STEPS)
    copy_own(tables, rows, y, lookups, count, D, BLOCK_D, ELEMENTS)


@triton.jit(do_not_specialize=["M"])
def naive(
    ids, tables, offsets, known, M, y,
    F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_LIST: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The least position in the feature's list that has the id, or else the last; the whole list is read."""
    feature = tl.program_id(0) % F
    samples = (tl.program_id(0) // F).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    id = tl.load(ids + tl.minimum(samples, M - 1) * F + feature)
    begin = tl.load(offsets + feature)
    last = (tl.load(offsets + feature + 1) - begin - 1).to(tl.int32)
    least = tl.zeros([BLOCK, BLOCK_LIST], tl.int32) + last
    for start in range(0, last, BLOCK_LIST):
        position = start + tl.arange(0, BLOCK_LIST)
        values = tl.load(known + begin + position, mask=position < last, other=-1)
        same = (id[:, None] == values[None, :]) & (position < last)[None, :]
        least = tl.where(same, tl.minimum(least, position[None, :]), least)
    rows = begin + tl.min(least, 1)
    rows = tl.where((id >> 32) == 0, rows, tl.load(offsets + F))
    copy_rows(tables, rows, y, samples * F + feature, samples < M, D, BLOCK_D)
