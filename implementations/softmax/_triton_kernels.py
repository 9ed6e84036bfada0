"""softmax in Triton: the kernels that triton.py and jax_triton.py both launch, and the choice of their tiles.

row, online  those of _shared/triton/softmax.py.
persistent   `row`, but as many programs as run at once, each with many rows: while one is computed and written, the next
             ones are copied to shared memory. Each row is read once as well.
"""

import functools

import triton
import triton.language as tl

from implementations._shared.gpu import multiprocessors
from implementations._shared.triton import softmax
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit, most_stages
from implementations._shared.triton.softmax import row_config, row_values, softmax_rows, vector
from implementations.softmax import _triton_backward as backward

TUNABLES = {
    "row": {"ROWS": (1, 2, 4, 8, 16, 32), "num_warps": (1, 2, 4, 8, 16, 32)},
    "persistent": {
        "ROWS": (1, 2, 4, 8), "PROGRAMS": (1, 2, 4, 8), "num_warps": (4, 8, 16, 32), "num_stages": (1, 2, 3, 4),
    },
    "online": {
        "BLOCK": (256, 512, 1024, 2048, 4096, 8192, 16384), "num_warps": (1, 2, 4, 8, 16, 32), "num_stages": (1, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    behind = None if case.mode == "forward" else backward.skip(case, variant, device)
    return behind or softmax.skip(case, variant, device)


def config(case, variant, device):
    """The tunables of a variant: its tile and warps. `persistent` has PROGRAMS on each multiprocessor as well, and as many
    tiles on their way, one of them in hand, as it has stages. In the backward modes they are those of the backward launch."""
    if case.mode != "forward":
        return backward.config(case, variant)
    if variant != "persistent":
        return softmax.config(case, variant, device)
    tile = row_config(case, device)
    if vector(case) > 1:  # edges take registers and their addresses too
        tile["num_warps"] = max(4, tile["num_warps"])
    R, block = case.sizes["R"], triton.next_power_of_2(case.sizes["C"])
    if block <= 2048 and R * block <= 16 * 2048 * multiprocessors(device):
        # programs have a tile or two each, so that nothing is worth copying ahead: the best of 256 configs at 1823 x 781 on an H200
        rows = min(2048 // block, triton.next_power_of_2(R))
        return {"ROWS": rows, "num_warps": 4, "PROGRAMS": 8, "num_stages": 1}
    tile["PROGRAMS"] = max(1, 16 // tile["num_warps"])  # 16 warps hide the latency of the arithmetic
    shared = functools.partial(shared_bytes, case, tile, tile["PROGRAMS"])
    return tile | {"num_stages": most_stages(device, 4, shared)}


def shared_bytes(case, tile, programs, num_stages):
    """Shared memory of so many programs, of one stage less than they have, which is in registers; and some to reduce."""
    return programs * (num_stages - 1) * row_values(case, tile) * case.itemsize + (8 << 10)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if case.mode != "forward":
        return backward.fits(case, variant, device, config)
    if variant != "persistent":
        return softmax.fits(case, variant, device, config)
    shared = shared_bytes(case, config, 1, config["num_stages"])
    return misfit(device, config, values=row_values(case, config), shared=shared)


def launches(case, variant, device, config):
    """The one launch of every variant, in mode=forward_backward that and the one backward."""
    if case.mode != "forward":
        behind = backward.launches(case, variant, config)
        return behind if case.mode == "backward" else (*forward_launches(case, variant, device), *behind)
    if variant != "persistent":
        return softmax.launches(case, variant, device, config)
    R, C = case.size("R", "C")
    pointer, tile = TYPES[case.dtype], dict(config)
    programs = min(triton.cdiv(R, tile["ROWS"]), tile.pop("PROGRAMS") * multiprocessors(device))
    signature = {"x": pointer, "R": "i32", "y": pointer}
    options = {"C": C, "BLOCK": triton.next_power_of_2(C), "STAGES": tile["num_stages"], "VECTOR": vector(case)}
    return (launch_with(tile, persistent, signature, options, (programs,)),)


def forward_launches(case, variant, device):
    """The launch of `row` or `online` in the backward modes, whose tunables are of the other one."""
    return softmax.launches(case, variant, device, softmax.config(case, variant, device))


@triton.jit(do_not_specialize=["R"])
def persistent(
    x, R, y, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr
):
    """ROWS rows at a time, as many programs apart as there are."""
    for start in tl.range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS, num_stages=STAGES):
        softmax_rows(x, y, start, R, C, ROWS, BLOCK, VECTOR, "")
