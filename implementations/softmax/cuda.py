"""softmax in CUDA C++ (cuda.cu, which describes the algorithms), one launch in every variant.

row: a row in the registers of some lanes or of a block. cluster: in the shared memory of one or several blocks. online: rows of any
length, read twice. The backward modes have the same variants (_cuda_backward.py).
"""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, unsupported
from implementations._shared.cuda.softmax import (
    RESIDENT_THREADS,
    fits_in_registers,
    online_warps,
    row_fits,
    row_lanes,
    row_shape,
    vectors,
)
from implementations._shared.gpu import multiprocessors, rows_are_aligned
from implementations.softmax import _cuda_backward as backward
from implementations.softmax import _cuda_cluster as cluster

BACKEND = "torch"
FUSED = True
# the fast exponential flushes subnormals
VARIANTS = {"row": ("subnormals",), "cluster": ("subnormals",), "online": ("subnormals",)}
BACKWARD = {
    "row": ("probabilities", "subnormals"),
    "cluster": ("probabilities", "subnormals"),
    "online": ("probabilities", "subnormals"),
}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("row", "online"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": "cluster", "case": "wide", "dtype": "bfloat16", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("row", "online"), "case": "published", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
    {"variant": "cluster", "case": "wide", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    "row": {"LANES": (4, 8, 16, 32, 128, 256, 512, 1024)},
    "cluster": {"CLUSTER": (1, 2, 4, 8), "num_warps": (4, 8, 16, 32)},
    "online": {"num_warps": (4, 8, 16, 32)},
}

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    count = vectors(case.sizes["C"], case)
    if case.sizes["C"] >= 2**30:
        return "columns are counted in 32 bits"
    if variant == "row" and not fits_in_registers(count):
        return "a row of more than 128 KiB does not fit in a block's registers: cluster or online"
    if variant == "cluster" and (reason := cluster.skip(count, case, device)):
        return reason
    return None if case.mode == "forward" else backward.skip(case, variant)


def config(case, variant, device):
    """The tunables; in the backward modes they are those of the backward launch."""
    return (forward_config if case.mode == "forward" else backward.config)(case, variant, device)


def forward_config(case, variant, device):
    (R, C), sms = case.size("R", "C"), multiprocessors(device)
    count = vectors(C, case)
    if variant == "row":
        lanes = row_lanes(count, R, sms)
        # many short rows: a thread's two vectors on their way fill the memory's queues, and rows share a warp's exchanges
        many = R * lanes >= 4 * RESIDENT_THREADS * sms and lanes <= 32 and lanes < 2 * count <= 4 * lanes
        return {"LANES": max(4, lanes // 2) if many else lanes}
    return cluster.config(count, R, device) if variant == "cluster" else {"num_warps": online_warps(count)}


def fits(case, variant, device, config):
    if case.mode != "forward":
        return backward.fits(case, variant, device, config)
    C = case.sizes["C"]
    if variant == "row":
        return row_fits(C, config, case)
    if variant == "cluster":
        return cluster.fits(vectors(C, case), device, config)
    return not_one_of("num_warps", config["num_warps"], (4, 8, 16, 32))


def launches(case, variant, device, config):
    """The one launch of every variant, in mode=forward_backward that and the one backward."""
    if case.mode == "forward":
        return forward_launches(case, variant, device, config)
    behind = backward.launches(case, variant, config)
    first = forward_launches(case, variant, device, forward_config(case, variant, device))
    return behind if case.mode == "backward" else (*first, *behind)


def forward_launches(case, variant, device, config):
    (R, C), dtypes = case.size("R", "C"), (case.dtype, case.dtype)
    head = TYPES[case.dtype], rows_are_aligned(case, C)
    if variant == "row":
        lanes, (block, held) = config["LANES"], row_shape(C, config, case)
        program = instance(FILE, "row", *head, lanes, held)
        return (Launch(program, -(-R * lanes // block), block, dtypes=dtypes, sizes=(R, C)),)
    if variant == "cluster":
        return (cluster.launch(FILE, "cluster", case, config, dtypes),)
    block = 32 * config["num_warps"]
    return (Launch(instance(FILE, "online", *head, block), R, block, dtypes=dtypes, sizes=(C,)),)


def build(case, variant, device, config):
    """call(x (R, C)) → (R, C); y is what the backward launch needs."""
    if case.mode == "forward":
        return _in_one_launch(case, *launches(case, variant, device, config))
    (first,) = forward_launches(case, variant, device, forward_config(case, variant, device))
    (second,) = backward.launches(case, variant, config)
    call = _in_one_launch(case, first)

    def forward(x):
        y = call(x)
        return y, y

    return forward, _in_one_launch(case, second)


def _in_one_launch(case, launch):
    """A function of arrays (R, C) that returns another."""
    return launch.returning({len(launch.dtypes) - 1: case.size("R", "C")})
