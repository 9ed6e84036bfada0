"""softmax's backward modes in Triton: dx = y * (dy - sum(y * dy)), in one launch from y, which the forward kernel leaves behind.

row         whole rows of y and dy in registers, each read once.
online      a row of any length in blocks: a first pass sums, a second reads the row again, last block first, because that is what
            L2 still holds. The first pass asks L2 to keep what it reads, the second to let it and dx go.
"""

import triton
import triton.language as tl

from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit

LONGEST = 16384  # elements of a row of two arrays in registers


def skip(case, variant, device):
    """Why Triton cannot run this cell backward, or None."""
    if case.sizes["R"] >= 2**30:
        return "rows are counted in 32 bits"
    if variant == "row" and case.sizes["C"] > LONGEST:
        return f"a row of more than {LONGEST} elements of y and of dy does not fit in a program's registers: online takes it"
    return None


def config(case, variant):
    """The tunables: rows of a program, or columns of a block, and warps: 16 elements of each array a thread, 8 of a block of `online`."""
    C = case.sizes["C"]
    if variant == "online":
        # of 4096×4096 in bfloat16 on an H100 35.1 µs with 16 warps, 35.6 with 8; of 5000×50257 on an H200 598 µs, in blocks of 4096 elements 709
        block = max(256, min(8192, triton.next_power_of_2(C)))
        return {"BLOCK": block, "num_warps": max(1, block // 256)}
    rows = max(1, min(512 // triton.next_power_of_2(C), triton.next_power_of_2(case.sizes["R"])))
    return {"ROWS": rows, "num_warps": max(1, min(32, rows * triton.next_power_of_2(C) // 512))}


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    values = config["BLOCK"] if variant == "online" else config["ROWS"] * triton.next_power_of_2(case.sizes["C"])
    return misfit(device, config, values=2 * values)


def launches(case, variant, config):
    """The one launch."""
    R, C = case.size("R", "C")
    pointer = TYPES[case.dtype]
    signature = {"y": pointer, "dy": pointer, "R": "i32", "dx": pointer}
    if variant == "online":
        return (launch_with(config, online_gradient, signature, {"C": C}, (R,)),)
    options = {"C": C, "BLOCK": triton.next_power_of_2(C)}
    return (launch_with(config, row_gradient, signature, options, (triton.cdiv(R, config["ROWS"]),)),)


@triton.jit(do_not_specialize=["R"])
def row_gradient(y, dy, R, dx, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS rows."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = ((rows < R) | (ROWS == 1))[:, None] & (columns < C)
    tile = rows[:, None] * C + columns
    p = tl.load(y + tile, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    behind = tl.load(dy + tile, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    gradient = p * (behind - tl.sum(p * behind, 1)[:, None])
    tl.store(dx + tile, gradient.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["R"])
def online_gradient(y, dy, R, dx, C: tl.constexpr, BLOCK: tl.constexpr):
    """One row. R is the grid."""
    place = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * C
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, C, BLOCK):
        columns, inside = start + place, start + place < C
        p = tl.load(y + row + columns, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        behind = tl.load(dy + row + columns, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        total += p * behind
    inner = tl.sum(total, 0)
    LAST: tl.constexpr = (C - 1) // BLOCK * BLOCK
    for passed in range(0, C, BLOCK):
        columns, inside = LAST - passed + place, LAST - passed + place < C
        p = tl.load(y + row + columns, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        behind = tl.load(dy + row + columns, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        gradient = (p * (behind - inner)).to(dx.dtype.element_ty)
        tl.store(dx + row + columns, gradient, mask=inside, eviction_policy="evict_first")
