"""softmax in Triton: the kernels that triton.py and jax_triton.py both launch, and the choice of their tiles.

row, online  those of _shared/triton/softmax.py.
persistent   `row`, but as many programs as run at once, each with many rows: while one is computed and written, the next
             ones are copied to shared memory. Each row is read once as well.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import multiprocessors, shared_memory
from implementations._shared.triton.launch import TYPES, Launch
from implementations._shared.triton.softmax import launch, row_tile, skip, softmax_tile  # noqa: F401 (`skip` is part of the contract)


def launches(case, variant, device):
    """The one launch of every variant."""
    if variant != "persistent":
        return (launch(case, variant),)
    C, pointer = case.sizes["C"], TYPES[case.dtype]
    rows, block, num_warps = row_tile(case)
    if C * case.itemsize % 16:
        num_warps = max(4, num_warps)  # elements are copied one by one, with an address in registers for each
    programs, stages = persistent_grid(case, device, rows, block, num_warps)
    signature = {"x": pointer, "R": "i32", "y": pointer}
    options = {"C": C, "ROWS": rows, "BLOCK": block, "STAGES": stages}
    return (Launch(persistent, signature, options, (programs,), num_warps, stages),)


def persistent_grid(case, device, rows, block, num_warps):
    """How many programs run at once, and how many tiles each has on its way, and one in hand.

    16 warps on a multiprocessor hide the latency of the arithmetic; what is on its way shares its memory.
    """
    R = case.sizes["R"]
    each = max(1, 16 // num_warps)
    memory = (shared_memory(device) - (8 << 10)) // each
    stages = min(4, 1 + memory // (rows * block * case.itemsize))
    return min(triton.cdiv(R, rows), each * multiprocessors(device)), stages


@triton.jit(do_not_specialize=["R"])
def persistent(x, R, y, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """ROWS rows at a time, as many programs apart as there are."""
    columns = tl.arange(0, BLOCK)[None, :]
    for first in tl.range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = ((rows < R) | (ROWS == 1))[:, None] & (columns < C)
        tile = rows[:, None] * C + columns
        z = softmax_tile(tl.load(x + tile, mask=inside, other=float("-inf")))
        tl.store(y + tile, z.to(y.dtype.element_ty), mask=inside)
