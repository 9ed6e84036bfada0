"""embedding's gradient in Triton with one order of additions: what `deterministic` launches, and the choice of its tiles.

Each feature has its own list of look-ups (F, M), items of key << 32 | sample, where the key is the row's place in the feature's table.

    clear               dtables is 0.
    count, scan, place  sort the lists by one digit of the key, stably, the lowest first, as a radix sort does: how often each block has
                        each digit, how many are before that, and each item to its place.
    walk                goes through the sorted lists in runs of LENGTH items, RUNS of them side by side, adds up dy while the key stays, and
                        stores the sum when it changes. A row that many samples share is the work of many runs: what a run has of a key
                        that began before it goes to heads, what goes on behind it to tails.
    finish              a program of a run whose last key goes on: its tail and the heads of all runs behind it that have the key.
    last_row            ids out of range, whose key is beyond the table: the sums of all features, for the last row of the tables.

Sums are float32 and each row is rounded once. Nothing hangs on which program is first.
"""

import triton
import triton.language as tl

from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit

LARGEST_DIGIT = 10  # bits
SORTED = 512  # items that a program counts or places


def digits(case):
    """The shifts of the digits, the lowest first, and how many values a digit has. Keys are 0 … V, of which V is none of a table."""
    bits = int(case.sizes["V"]).bit_length()
    passes = -(-bits // LARGEST_DIGIT)
    width = max(5, -(-bits // passes))
    return [n * width for n in range(passes)], 1 << width


def config(case):
    """The tunables of `walk`: 2048 elements side by side."""
    BLOCK_D = min(128, triton.next_power_of_2(case.sizes["D"]))
    return prefixed({"walk": {"RUNS": max(4, 2048 // BLOCK_D // 2), "LENGTH": 32, "BLOCK_D": BLOCK_D, "num_warps": 4}})


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own = by_launch(config)["walk"]
    return first_reason({"walk": misfit(device, own, values=4 * own["RUNS"] * own["BLOCK_D"])})


def launches(case, config):
    """What comes behind `clear`: count, scan and place of each digit, walk, finish, last_row."""
    M, F, V, D = case.size("M", "F", "V", "D")
    own, pointer = by_launch(config)["walk"], TYPES[case.dtype]
    shifts, BINS = digits(case)
    read = {"rows": "*i32", "items": "*i64", "offsets": "*i64", "M": "i32"}
    lists, columns, found = (F, triton.cdiv(M, SORTED)), triton.cdiv(D, own["BLOCK_D"]), []
    for shift in shifts:
        options = {"F": F, "V": V, "BINS": BINS, "SHIFT": shift, "FIRST": shift == 0, "BLOCK": SORTED}
        found += [
            launch_with({"num_warps": 4}, count, read | {"counts": "*i32"}, options, lists),
            launch_with(
                {"num_warps": 4}, scan, {"counts": "*i32", "M": "i32", "before": "*i32", "totals": "*i32"},
                {"BINS": BINS, "BLOCK": SORTED, "GROUP": 32}, (F, BINS // 32),
            ),
            launch_with(
                {"num_warps": 8}, place, read | {"before": "*i32", "totals": "*i32", "sorted_items": "*i64"}, options, lists
            ),
        ]  # fmt: skip
    options, runs = {"F": F, "D": D}, triton.cdiv(M, own["LENGTH"])
    items = {"items": "*i64", "offsets": "*i64", "M": "i32"}
    sums = {"heads": "*fp32", "tails": "*fp32", "lost": "*fp32"}
    signature = items | {"dy": pointer, "cleared": pointer} | sums | {"dtables": pointer}
    found.append(launch_with(own, walk, signature, options, (F * triton.cdiv(runs, own["RUNS"]), columns)))
    chosen = {"LENGTH": own["LENGTH"], "BLOCK_D": own["BLOCK_D"], "num_warps": 2}
    ahead = {"AHEAD": max(32, min(128, 2048 // own["BLOCK_D"]))}
    signature = items | sums | {"written": pointer, "found": "*fp32", "dtables": pointer}
    found.append(launch_with(chosen, finish, signature, options | ahead, (F * runs, columns)))
    signature = items | {"lost": "*fp32", "written": pointer, "dtables": pointer}
    chosen = {"BLOCK_F": triton.next_power_of_2(F), "BLOCK_D": 16, "num_warps": 4}
    found.append(launch_with(chosen, last_row, signature, options, (triton.cdiv(D, 16),)))
    return tuple(found)


def shapes(case, config):
    """Of the arrays between the launches: counts, totals, items, heads (and tails), lost."""
    M, F, D = case.size("M", "F", "D")
    _, BINS = digits(case)
    runs = triton.cdiv(M, by_launch(config)["walk"]["LENGTH"])
    return (F, BINS, triton.cdiv(M, SORTED)), (F, BINS), (F, M), (F, runs, D), (F, D)


@triton.jit
def items_of(rows, items, offsets, M, feature, samples, F: tl.constexpr, V: tl.constexpr, FIRST: tl.constexpr):
    """The items at these places of a feature's list; the FIRST digit finds them in the rows of the look-ups."""
    inside = samples < M
    if FIRST:
        row = tl.load(rows + samples * F + feature, mask=inside, other=0).to(tl.int64)
        key = tl.minimum(row - tl.load(offsets + feature), V)
        return (key << 32) | samples
    else:
        return tl.load(items + feature.to(tl.int64) * M + samples, mask=inside, other=0)


@triton.jit
def digit_of(items, BINS: tl.constexpr, SHIFT: tl.constexpr):
    """The digit of each item's key."""
    return ((items >> (32 + SHIFT)) & (BINS - 1)).to(tl.int32)


@triton.jit(do_not_specialize=["M"])
def count(
    rows, items, offsets, M, counts,
    F: tl.constexpr, V: tl.constexpr, BINS: tl.constexpr, SHIFT: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How often a block of a feature's list has each digit: counts (F, BINS, blocks)."""
    feature, block = tl.program_id(0), tl.program_id(1)
    samples = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    digit = digit_of(items_of(rows, items, offsets, M, feature, samples, F, V, FIRST), BINS, SHIFT)
    digit = tl.where(samples < M, digit, BINS - 1)
    outside = tl.sum((samples >= M).to(tl.int32), 0)
    bins = tl.arange(0, BINS)
    found = tl.histogram(digit, BINS) - tl.where(bins == BINS - 1, outside, 0)
    tl.store(counts + (feature.to(tl.int64) * BINS + bins) * tl.num_programs(1) + block, found)


@triton.jit(do_not_specialize=["M"])
def scan(counts, M, before, totals, BINS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Of GROUP digits of a feature: how many the blocks before each block have, and how many there are."""
    bins = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    lists = tl.program_id(0).to(tl.int64) * BINS + bins
    blocks = tl.cdiv(M, BLOCK)
    total = tl.zeros([GROUP], tl.int32)
    for start in range(0, blocks, 64):
        block = start + tl.arange(0, 64)
        at, inside = lists[:, None] * blocks + block[None, :], (block < blocks)[None, :]
        found = tl.load(counts + at, mask=inside, other=0)
        tl.store(before + at, total[:, None] + tl.cumsum(found, 1) - found, mask=inside)
        total += tl.sum(found, 1)
    tl.store(totals + lists, total)


@triton.jit(do_not_specialize=["M"])
def place(
    rows, items, offsets, M, before, totals, sorted_items,
    F: tl.constexpr, V: tl.constexpr, BINS: tl.constexpr, SHIFT: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a feature's list to where its digit says: behind all smaller ones, the same in blocks before, the same before it here."""
    feature, block = tl.program_id(0), tl.program_id(1)
    samples = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    own = items_of(rows, items, offsets, M, feature, samples, F, V, FIRST)
    digit = digit_of(own, BINS, SHIFT)
    lane = tl.arange(0, BLOCK)
    rank = tl.zeros([BLOCK], tl.int32)
    for start in range(0, BLOCK, 16):
        others = start + tl.arange(0, 16)
        found = items_of(rows, items, offsets, M, feature, block.to(tl.int64) * BLOCK + others, F, V, FIRST)
        same = (digit[:, None] == digit_of(found, BINS, SHIFT)[None, :]) & (others[None, :] < lane[:, None])
        rank += tl.sum(same.to(tl.int32), 1)
    total = tl.load(totals + feature * BINS + tl.arange(0, BINS))
    rank += tl.gather(tl.cumsum(total, 0) - total, digit, 0)
    inside = samples < M
    at = (feature.to(tl.int64) * BINS + digit) * tl.num_programs(1) + block
    rank += tl.load(before + at, mask=inside, other=0)
    tl.store(sorted_items + feature.to(tl.int64) * M + rank, own, mask=inside)


@triton.jit
def key_at(items, at, M):
    """The keys at these places of a list, -1 outside of it."""
    return (tl.load(items + at, mask=(at >= 0) & (at < M), other=-1) >> 32).to(tl.int32)


@triton.jit
def put(dtables, lost, begin, size, feature, key, sums, d, mask, D: tl.constexpr):
    """Sums (…, BLOCK_D) of these keys to their rows, of keys beyond the table to the feature's row of lost."""
    inside = mask[:, None] & (d < D)[None, :]
    row = begin + key
    known = (key < size)[:, None]
    tl.store(dtables + row[:, None] * D + d[None, :], sums.to(dtables.dtype.element_ty), mask=inside & known)
    tl.store(lost + (feature * D + d)[None, :] + 0 * key[:, None], sums, mask=inside & (key >= size)[:, None])


@triton.jit(do_not_specialize=["M"])
def walk(
    items, offsets, M, dy, cleared, heads, tails, lost, dtables,
    F: tl.constexpr, D: tl.constexpr, RUNS: tl.constexpr, LENGTH: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """RUNS runs of one feature, BLOCK_D columns. What comes next is loaded before a sum is stored. `cleared` and `dtables` are the same
    memory."""
    feature, group = tl.program_id(0) % F, tl.program_id(0) // F
    begin = tl.load(offsets + feature)
    size = (tl.load(offsets + feature + 1) - begin).to(tl.int32)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    items += feature.to(tl.int64) * M
    run = group * RUNS + tl.arange(0, RUNS)
    at = run * LENGTH
    partial = (feature.to(tl.int64) * tl.cdiv(M, LENGTH) + run)[:, None] * D + d[None, :]
    item = tl.load(items + at, mask=at < M, other=-1)
    following = tl.load(items + at + 1, mask=at + 1 < M, other=-1)
    acc = vectors(dy, item, feature, d, F, D)
    key = (item >> 32).to(tl.int32)
    own = key != key_at(items, at - 1, M)
    for step in range(1, LENGTH):
        item = following
        behind = vectors(dy, item, feature, d, F, D)
        following = tl.load(items + at + step + 1, mask=at + step + 1 < M, other=-1)
        found = (item >> 32).to(tl.int32)
        changed = found != key
        ended = changed & (key >= 0)
        put(dtables, lost, begin, size, feature, key, acc, d, ended & own, D)
        tl.store(heads + partial, acc, mask=(ended & ~own)[:, None] & (d < D)[None, :])
        acc = tl.where(changed[:, None], behind, acc + behind)
        own = own | changed
        key = found
    there = key >= 0
    on = (following >> 32).to(tl.int32) == key
    put(dtables, lost, begin, size, feature, key, acc, d, there & own & ~on, D)
    tl.store(tails + partial, acc, mask=(there & own & on)[:, None] & (d < D)[None, :])
    tl.store(heads + partial, acc, mask=(there & ~own)[:, None] & (d < D)[None, :])


@triton.jit
def vectors(dy, item, feature, d, F: tl.constexpr, D: tl.constexpr):
    """dy of the samples of these items, 0 of none."""
    lookup = (item & 0xFFFFFFFF) * F + feature
    mask = (item >= 0)[:, None] & (d < D)[None, :]
    return tl.load(dy + lookup[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["M"])
def finish(
    items, offsets, M, heads, tails, lost, written, found, dtables,
    F: tl.constexpr, D: tl.constexpr, AHEAD: tl.constexpr, LENGTH: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One run, and AHEAD others at a time. `lost` and `found`, and `written` and `dtables`, are the same memory."""
    feature, run = tl.program_id(0) % F, tl.program_id(0) // F
    items += feature.to(tl.int64) * M
    runs = tl.cdiv(M, LENGTH)
    first, last = run * LENGTH, run * LENGTH + LENGTH - 1
    key = key_at(items, last, M)
    goes_on = (key >= 0) & (key == key_at(items, last + 1, M))
    began = (key != key_at(items, first, M)) | (key != key_at(items, first - 1, M))
    if goes_on & began:
        begin = tl.load(offsets + feature)
        size = (tl.load(offsets + feature + 1) - begin).to(tl.int32)
        d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
        partial = feature.to(tl.int64) * runs
        acc = tl.load(tails + (partial + run) * D + d, mask=d < D, other=0.0)
        ahead = run + 1 + tl.arange(0, AHEAD)
        same = key_at(items, ahead * LENGTH, M) == key
        while tl.max(same.to(tl.int32), 0) > 0:
            mask = same[:, None] & (d < D)[None, :]
            acc += tl.sum(tl.load(heads + (partial + ahead)[:, None] * D + d[None, :], mask=mask, other=0.0), 0)
            ahead += AHEAD
            same = key_at(items, ahead * LENGTH, M) == key
        row = begin + key
        tl.store(dtables + row * D + d, acc.to(dtables.dtype.element_ty), mask=(d < D) & (key < size))
        tl.store(found + feature * D + d, acc, mask=(d < D) & (key >= size))


@triton.jit(do_not_specialize=["M"])
def last_row(
    items, offsets, M, lost, written, dtables,
    F: tl.constexpr, D: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The last row of dtables, from the features whose last key is beyond their table. `written` and `dtables` are the same memory."""
    feature = tl.arange(0, BLOCK_F)
    there = feature < F
    begin = tl.load(offsets + feature, mask=there, other=0)
    size = tl.load(offsets + feature + 1, mask=there, other=0) - begin
    key = tl.load(items + feature.to(tl.int64) * M + M - 1, mask=there, other=0) >> 32
    d = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = (there & (key >= size))[:, None] & (d < D)[None, :]
    sums = tl.sum(tl.load(lost + feature[:, None] * D + d[None, :], mask=mask, other=0.0), 0)
    tl.store(dtables + tl.load(offsets + F) * D + d, sums.to(dtables.dtype.element_ty), mask=d < D)
