"""Softmax of rows in Triton: kernels that softmax and shcsa launch, and the choice of their tiles.

    row         a program has a few whole rows in its registers, and reads each once.
    online      a program has one row of any length, in blocks. A first pass keeps a running maximum and sum for each place
                in the block; a second reads the row again, last block first, because that is what L2 still holds. The first pass
                asks L2 to keep what it reads, the second to let it and y go.

C is a compile-time constant, so that the mask folds away where the block divides it. R may change without compiling anew.
Where rows begin anywhere, VECTOR elements are 16 bytes, and what is before the first and behind the last whole vector of a row, its
edges, moves apart from them: else all elements would move one by one. VECTOR is 1 where rows are whole vectors, or short.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import VECTOR_BYTES, multiprocessors
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit

LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32; only -inf is below
LONGEST = 32768  # elements of a row in registers: 32 for each of 1024 threads; twice as many spill


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if case.sizes["R"] >= 2**30:
        return "rows are counted in 32 bits"
    if variant != "online" and case.sizes["C"] > LONGEST:
        return f"a row of more than {LONGEST} elements does not fit in a program's registers: online takes it"
    return None


def config(case, variant, device):
    """The tunables of `row` or `online`."""
    return row_config(case, device) if variant == "row" else online_config(case)


def fits(case, variant, device, config):
    """Why a config of `row` or `online` cannot run, or None."""
    if variant == "online":
        shared = (config["num_stages"] - 1) * config["BLOCK"] * case.itemsize + (
            8 << 10
        )  # blocks on their way, and some to reduce
        return misfit(device, config, values=3 * config["BLOCK"], shared=shared)  # a maximum, a sum and an element
    return misfit(device, config, values=row_values(case, config))


def launches(case, variant, device, config):
    """The one launch of `row` or `online`."""
    R, C = case.size("R", "C")
    pointer = TYPES[case.dtype]
    signature = {"x": pointer, "R": "i32", "y": pointer}
    if variant == "online":
        options = {"C": C, "VECTOR": vector(case), "STAGES": config["num_stages"]}
        return (launch_with(config, online, signature, options, (R,)),)
    options = {"C": C, "BLOCK": triton.next_power_of_2(C), "VECTOR": vector(case)}
    return (launch_with(config, row, signature, options, (triton.cdiv(R, config["ROWS"]),)),)


def row_values(case, config):
    """Elements that a program of whole rows holds."""
    return config["ROWS"] * triton.next_power_of_2(case.sizes["C"])


def vector(case):
    """VECTOR of a case's rows: 1 for short ones too, of which edges would be a large part."""
    size, C = VECTOR_BYTES // case.itemsize, case.sizes["C"]
    return size if C % size and 16 * size < C else 1


def row_config(case, device):
    """Rows of a program, and its warps: 32 elements a thread, 16 where a program has several warps.

    Up to 1024 elements one warp is enough, which then reduces without a barrier; short rows share one, 512 elements a warp, and
    where there are enough of them four warps of a program, so that programs begin and end less often.
    """
    R, C = case.size("R", "C")
    block = triton.next_power_of_2(C)
    many = max(1, 2048 // block)
    if block <= 512 and 8 * multiprocessors(device) * many <= R:
        return {"ROWS": many, "num_warps": 4}
    rows = max(1, min(512 // block, triton.next_power_of_2(R)))
    elements = rows * block
    num_warps = 1 if elements <= 1024 else min(32, max(4, elements // 512))
    return {"ROWS": rows, "num_warps": 16 if elements == 16384 else num_warps}


def online_config(case):
    """Columns of a block, and warps: 16 elements a thread, because each has a maximum and a sum of its own, of long rows 8.

    A row of less than four blocks takes smaller ones. Of long rows the next blocks are copied to shared memory while one is computed, but
    where rows begin anywhere. In bfloat16 on an H200, by events: 8192×16384 154 µs (in blocks of 4096 192), 8192×32768 327 (before,
    without stages and with blocks of 8192 411; with blocks of 2048 345), 4096×131072 755 (before 874), 5000×50257 347 (with stages 382, before 457).
    """
    whole = triton.next_power_of_2(case.sizes["C"])
    if whole < 16384:
        block = max(64, whole // 4)
        return {"BLOCK": block, "num_warps": max(1, block // 512), "num_stages": 1}
    block = 2048 if whole == 16384 else 4096
    return {"BLOCK": block, "num_warps": block // 256, "num_stages": 4 if vector(case) == 1 else 1}


@triton.jit
def softmax_tile(x):
    """Softmax along axis 1 of x (ROWS, BLOCK), with -inf where there is nothing. A row of nothing but -inf becomes NaN."""
    x = x.to(tl.float32)
    e = tl.exp(x - tl.max(x, 1)[:, None])
    return e * (1.0 / tl.sum(e, 1))[:, None]


@triton.jit
def first_vector(first, C, VECTOR: tl.constexpr):
    """Of rows of C elements that begin at elements `first`: the element at which their whole vectors begin, how many elements are before
    it, and how many are in whole vectors, of which Triton sees that it is a multiple of VECTOR."""
    begin = (first + (VECTOR - 1)) // VECTOR * VECTOR
    head = tl.minimum(begin - first, C).to(tl.int32)
    return begin, head, (C - head) // VECTOR * VECTOR


@triton.jit
def edge_columns(head, count, C, VECTOR: tl.constexpr):
    """(columns of the edges of rows, whether there is one), of 2 VECTOR places a row: those before the vectors and those behind by
    turns, so that Triton gives each to a lane of its own."""
    k = tl.arange(0, 2 * VECTOR)
    before, behind = k // 2, head + count + k // 2
    return tl.where(k % 2 == 0, before, behind), tl.where(k % 2 == 0, before < head, behind < C)


@triton.jit
def softmax_rows(
    x, y, start, R, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, EVICT: tl.constexpr
):
    """Softmax of rows [start, start + ROWS) of x (R, C) into y."""
    rows = (start + tl.arange(0, ROWS)).to(tl.int64)
    there = (rows < R) | (ROWS == 1)
    columns = tl.arange(0, BLOCK)[None, :]
    if VECTOR == 1:
        inside = there[:, None] & (columns < C)
        tile = (rows * C)[:, None] + columns
        z = softmax_tile(tl.load(x + tile, mask=inside, other=float("-inf"), eviction_policy=EVICT))
        tl.store(y + tile, z.to(y.dtype.element_ty), mask=inside)
    elif ROWS == 1:
        # a scalar maximum has no layout, so that the edges keep one of their own
        first = (start + tl.full((), 0, tl.int64)) * C  # in the interpreter a loop counts in ints, which have no `to`
        begin, head, count = first_vector(first, C, VECTOR)
        inside = columns < count
        place, is_edge = edge_columns(head, count, C, VECTOR)
        place += first
        edge = tl.load(x + place, mask=is_edge, other=float("-inf")).to(tl.float32)
        v = tl.load(x + begin + columns, mask=inside, other=float("-inf"), eviction_policy=EVICT).to(tl.float32)
        m = tl.maximum(tl.max(v), tl.max(edge))
        v, edge = tl.exp(v - m), tl.exp(edge - m)
        inverse = 1.0 / (tl.sum(v) + tl.sum(edge))
        tl.store(y + begin + columns, (v * inverse).to(y.dtype.element_ty), mask=inside)
        tl.store(y + place, (edge * inverse).to(y.dtype.element_ty), mask=is_edge)
    else:
        first = rows * C
        begin, head, count = first_vector(first, C, VECTOR)
        inside = there[:, None] & (columns < count[:, None])
        tile = begin[:, None] + columns
        place, is_edge = edge_columns(head[:, None], count[:, None], C, VECTOR)
        place, is_edge = first[:, None] + place, is_edge & there[:, None]
        edge = tl.load(x + place, mask=is_edge, other=float("-inf")).to(tl.float32)
        v = tl.load(x + tile, mask=inside, other=float("-inf"), eviction_policy=EVICT).to(tl.float32)
        m = tl.maximum(tl.max(v, 1), tl.max(edge, 1))[:, None]
        v, edge = tl.exp(v - m), tl.exp(edge - m)
        inverse = (1.0 / (tl.sum(v, 1) + tl.sum(edge, 1)))[:, None]
        tl.store(y + tile, (v * inverse).to(y.dtype.element_ty), mask=inside)
        tl.store(y + place, (edge * inverse).to(y.dtype.element_ty), mask=is_edge)


@triton.jit(do_not_specialize=["R"])
def row(x, R, y, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """ROWS rows. What is read leaves L2 first, which keeps y for whoever reads it next."""
    softmax_rows(x, y, tl.program_id(0) * ROWS, R, C, ROWS, BLOCK, VECTOR, "evict_first")


@triton.jit(do_not_specialize=["R"])
def online(x, R, y, C: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr):
    """One row. R is the grid."""
    place = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * C
    # from the lowest finite number a first -inf is as far as from any other: -inf - -inf would be NaN
    highest = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    if VECTOR == 1:
        begin, count = first, C
    else:
        begin, head, count = first_vector(first, C, VECTOR)
        at, is_edge = edge_columns(head, count, C, VECTOR)
        edge = tl.load(x + first + at, mask=is_edge, other=float("-inf")).to(tl.float32)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        inside = start + place < count
        v = tl.load(x + begin + start + place, mask=inside, other=float("-inf"), eviction_policy="evict_last").to(
            tl.float32
        )
        rescale = tl.exp(-tl.abs(v - highest))  # of the sum if v is the new maximum, else of v
        total = tl.where(v > highest, total * rescale + 1.0, total + rescale)
        highest = tl.maximum(highest, v)
    m = tl.max(highest, 0)
    if VECTOR == 1:
        inverse = 1.0 / tl.sum(total * tl.exp(highest - m), 0)  # +inf here makes the whole row NaN, as exp(inf - inf)
    else:
        m = tl.maximum(m, tl.max(edge, 0))
        edge = tl.exp(edge - m)
        inverse = 1.0 / (tl.sum(total * tl.exp(highest - m), 0) + tl.sum(edge, 0))
        tl.store(y + first + at, (edge * inverse).to(y.dtype.element_ty), mask=is_edge)
    last = (count - 1) // BLOCK * BLOCK
    for passed in tl.range(0, count, BLOCK, num_stages=STAGES):
        columns = last - passed + place
        inside = columns < count
        v = tl.load(x + begin + columns, mask=inside, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
        z = (tl.exp(v - m) * inverse).to(y.dtype.element_ty)
        tl.store(y + begin + columns, z, mask=inside, eviction_policy="evict_first")
