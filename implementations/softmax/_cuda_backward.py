"""softmax's backward modes in CUDA C++: one launch from y, which the forward one leaves behind (cuda_backward.cu).

The variants and their tunables are those of cuda.py; a thread holds vectors of y and of dy, so that rows are half as long.
"""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of
from implementations._shared.cuda.softmax import VECTORS, online_warps, power_of_two, vectors
from implementations._shared.gpu import multiprocessors, rows_are_aligned

FILE = Path(__file__).with_name("cuda_backward.cu")
EACH = VECTORS // 2  # vectors that a thread may hold of y, and as many of dy
MOST = 512  # threads that hold a row together: more leave each too few registers for as many vectors


def skip(case, variant, device):
    """Why the variant cannot hold a row of y and one of dy, or None. `cluster` has the device that it needs."""
    count = vectors(case.sizes["C"], case)
    if variant == "row" and count > MOST * EACH:
        return "rows of y and dy of more than 32 KiB do not fit in a block's registers: cluster or online"
    if variant == "cluster" and count > 8 * MOST * EACH:
        return "rows of y and dy of more than 256 KiB do not fit in the registers of 8 blocks: online"
    return None


def config(case, variant, device):
    """The tunables of the launch."""
    R, C = case.size("R", "C")
    count = vectors(C, case)
    if variant == "row":
        return {"LANES": _lanes(count)}
    if variant == "online":
        return {"num_warps": online_warps(2 * count)}  # of y and of dy
    sizes = (8,) if multiprocessors(device) > 2 * R else (2, 4, 8)  # few rows take all the blocks they can
    lanes, blocks = next((n, b) for n in (256, MOST) for b in sizes if count <= b * n * EACH)
    return {"CLUSTER": blocks, "num_warps": lanes // 32}


def _lanes(count):
    """Lanes of a row of `count` vectors: up to a warp, which needs no barrier, as many as there are vectors; beyond, 2 each, whose
    registers leave room for enough blocks to read while others store."""
    if count <= 32 * EACH:
        return min(32, power_of_two(max(4, count)))
    return max(128, min(MOST, power_of_two(-(-count // 2))))


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    count = vectors(case.sizes["C"], case)
    if variant == "row":
        lanes = config["LANES"]
        if reason := not_one_of("LANES", lanes, (4, 8, 16, 32, 128, 256, MOST)):
            return reason
        if count > lanes * EACH:
            return f"rows of y and dy are {count} vectors of 16 bytes each; {lanes} lanes hold {lanes * EACH} of each in registers"
        return None
    if variant == "online":
        return not_one_of("num_warps", config["num_warps"], (4, 8, 16, 32))
    if reason := not_one_of("num_warps", config["num_warps"], (8, 16)):
        return reason
    most = config["CLUSTER"] * config["num_warps"] * 32 * EACH
    if count > most:
        return f"rows of y and dy are {count} vectors of 16 bytes each; the registers of a cluster of that size hold {most} of each"
    return not_one_of("CLUSTER", config["CLUSTER"], (2, 4, 8))


def launches(case, variant, config):
    """The one launch."""
    (R, C), dtypes = case.size("R", "C"), (case.dtype,) * 3
    head, count = (TYPES[case.dtype], rows_are_aligned(case, C)), vectors(C, case)
    if variant == "row":
        lanes = config["LANES"]
        block = max(128, lanes)
        program = instance(FILE, "row_gradient", *head, lanes, max(1, -(-count // lanes)))
        return (Launch(program, -(-R * lanes // block), block, dtypes=dtypes, sizes=(R, C)),)
    block = 32 * config["num_warps"]
    if variant == "online":
        return (Launch(instance(FILE, "online_gradient", *head, block), R, block, dtypes=dtypes, sizes=(C,)),)
    blocks = config["CLUSTER"]
    program = instance(FILE, "cluster_gradient", *head, blocks, block, max(1, -(-count // (block * blocks))))
    return (Launch(program, R * blocks, block, dtypes=dtypes, sizes=(C,)),)
