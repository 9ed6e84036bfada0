"""Softmax of rows in Triton: kernels that softmax and shcsa launch, and the choice of their tiles.

    row         a program has a few whole rows in its registers, and reads each once.
    online      a program has one row of any length, in blocks. A first pass keeps a running maximum and sum for each place
                in the block; a second reads the row again, last block first, because that is what L2 still holds.

C is a compile-time constant, so that the mask folds away where the block divides it. R may change without compiling anew.
"""

import triton
import triton.language as tl

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
    return row_config(case) if variant == "row" else online_config(case)


def fits(case, variant, device, config):
    """Why a config of `row` or `online` cannot run, or None."""
    if variant == "online":
        return misfit(device, config, values=3 * config["BLOCK"])  # a maximum, a sum and an element
    return misfit(device, config, values=row_values(case, config))


def launches(case, variant, device, config):
    """The one launch of `row` or `online`."""
    R, C = case.size("R", "C")
    pointer = TYPES[case.dtype]
    signature = {"x": pointer, "R": "i32", "y": pointer}
    if variant == "online":
        return (launch_with(config, online, signature, {"C": C}, (R,)),)
    options = {"C": C, "BLOCK": triton.next_power_of_2(C)}
    return (launch_with(config, row, signature, options, (triton.cdiv(R, config["ROWS"]),)),)


def row_values(case, config):
    """Elements that a program of whole rows holds."""
    return config["ROWS"] * triton.next_power_of_2(case.sizes["C"])


def row_config(case):
    """Rows of a program, and its warps: 32 elements a thread, 16 where a program has several warps.

    Up to 1024 elements one warp is enough, which then reduces without a barrier; short rows share one, 512 elements a warp.
    """
    R, C = case.size("R", "C")
    block = triton.next_power_of_2(C)
    rows = max(1, min(512 // block, triton.next_power_of_2(R)))
    elements = rows * block
    num_warps = 1 if elements <= 1024 else min(32, max(4, elements // 512))
    return {"ROWS": rows, "num_warps": 16 if elements == 16384 else num_warps}


def online_config(case):
    """Columns of a block, and warps: 16 elements a thread, because each has a maximum and a sum of its own.

    A row of less than four blocks takes smaller ones.
    """
    block = min(8192, max(64, triton.next_power_of_2(case.sizes["C"]) // 4))
    return {"BLOCK": block, "num_warps": max(1, block // 512)}


@triton.jit
def softmax_tile(x):
    """Softmax along axis 1 of x (ROWS, BLOCK), with -inf where there is nothing. A row of nothing but -inf becomes NaN."""
    x = x.to(tl.float32)
    e = tl.exp(x - tl.max(x, 1)[:, None])
    return e * (1.0 / tl.sum(e, 1))[:, None]


@triton.jit(do_not_specialize=["R"])
def row(x, R, y, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS rows. What is read leaves L2 first, which keeps y for whoever reads it next."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = ((rows < R) | (ROWS == 1))[:, None] & (columns < C)
    tile = rows[:, None] * C + columns
    z = softmax_tile(tl.load(x + tile, mask=inside, other=float("-inf"), eviction_policy="evict_first"))
    tl.store(y + tile, z.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["R"])
def online(x, R, y, C: tl.constexpr, BLOCK: tl.constexpr):
    """One row. R is the grid."""
    place = tl.arange(0, BLOCK)
    x += tl.program_id(0).to(tl.int64) * C
    y += tl.program_id(0).to(tl.int64) * C
    # from the lowest finite number a first -inf is as far as from any other: -inf - -inf would be NaN
    highest = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, C, BLOCK):
        v = tl.load(x + start + place, mask=start + place < C, other=float("-inf")).to(tl.float32)
        rescale = tl.exp(-tl.abs(v - highest))  # of the sum if v is the new maximum, else of v
        total = tl.where(v > highest, total * rescale + 1.0, total + rescale)
        highest = tl.maximum(highest, v)
    m = tl.max(highest, 0)
    inverse = 1.0 / tl.sum(total * tl.exp(highest - m), 0)  # +inf here makes the whole row NaN, as exp(inf - inf)
    LAST: tl.constexpr = (C - 1) // BLOCK * BLOCK
    for passed in range(0, C, BLOCK):
        columns = LAST - passed + place
        v = tl.load(x + columns, mask=columns < C, other=float("-inf")).to(tl.float32)
        tl.store(y + columns, (tl.exp(v - m) * inverse).to(y.dtype.element_ty), mask=columns < C)
