"""softmax's backward modes in CUDA C++: one launch from y, which the forward one leaves behind (cuda_backward.cu).

The variants and their tunables are those of cuda.py; what holds a row has one of y and one of dy, so that rows are half as long.
"""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of
from implementations._shared.cuda.softmax import VECTORS, online_warps, power_of_two, vectors
from implementations._shared.gpu import rows_are_aligned
from implementations.softmax import _cuda_cluster as cluster

FILE = Path(__file__).with_name("cuda_backward.cu")
EACH = VECTORS // 2  # vectors that a thread may hold of y, and as many of dy
MOST = 512  # threads that hold a row together: more leave each too few registers for as many vectors


def skip(case, variant):
    """Why a block's registers cannot hold a row of y and one of dy, or None."""
    if variant == "row" and vectors(case.sizes["C"], case) > MOST * EACH:
        return "rows of y and dy of more than 32 KiB do not fit in a block's registers: cluster or online"
    return None


def config(case, variant, device):
    """The tunables of the launch."""
    R, C = case.size("R", "C")
    count = vectors(C, case)
    if variant == "row":
        return {"LANES": _lanes(count)}
    if variant == "online":
        return {"num_warps": online_warps(2 * count)}  # of y and of dy
    return cluster.config(cluster.held(count, case), R, device)


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
    if variant == "cluster":
        return cluster.fits(cluster.held(count, case), device, config)
    return not_one_of("num_warps", config["num_warps"], (4, 8, 16, 32))


def launches(case, variant, config):
    """The one launch."""
    (R, C), dtypes = case.size("R", "C"), (case.dtype,) * 3
    head, count = (TYPES[case.dtype], rows_are_aligned(case, C)), vectors(C, case)
    if variant == "row":
        lanes = config["LANES"]
        block = max(128, lanes)
        program = instance(FILE, "row_gradient", *head, lanes, max(1, -(-count // lanes)))
        return (Launch(program, -(-R * lanes // block), block, dtypes=dtypes, sizes=(R, C)),)
    if variant == "cluster":
        return (cluster.launch(FILE, "cluster_gradient", case, config, dtypes),)
    block = 32 * config["num_warps"]
    return (Launch(instance(FILE, "online_gradient", *head, block), R, block, dtypes=dtypes, sizes=(C,)),)
