"""softmax in CUDA C++ (cuda.cu, which describes the algorithms), one launch in every variant.

row: a row in the registers of some lanes or of a block. cluster: in those of several blocks. persistent: blocks that stay, and have
rows on their way. online: rows of any length, read twice. The backward modes have row, cluster and online (_cuda_backward.py).
"""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large, unsupported
from implementations._shared.cuda.softmax import (
    RESIDENT_THREADS,
    ROW_THREADS,
    VECTORS,
    fits_in_registers,
    online_warps,
    row_fits,
    row_lanes,
    row_shape,
    vectors,
)
from implementations._shared.gpu import multiprocessors, rows_are_aligned, shared_memory
from implementations.softmax import _cuda_backward as backward

BACKEND = "torch"
FUSED = True
VARIANTS = {"row": (), "cluster": (), "persistent": (), "online": ()}
BACKWARD = {"row": ("probabilities",), "cluster": ("probabilities",), "online": ("probabilities",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("row", "online"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("cluster", "persistent"), "case": "wide", "dtype": "bfloat16", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("row", "online"), "case": "published", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
    {"variant": "cluster", "case": "wide", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    "row": {"LANES": (4, 8, 16, 32, 128, 256, 512, 1024)},
    "cluster": {"CLUSTER": (2, 4, 8), "num_warps": (8, 16, 32)},
    "persistent": {"LANES": (128, 256, 512, 1024), "num_stages": (1, 2, 3, 4, 6)},
    "online": {"num_warps": (4, 8, 16, 32)},
}

FILE = Path(__file__).with_suffix(".cu")
CLUSTER_THREADS = 256, 512, 1024
PERSISTENT_STATIC = 1024 + 512  # bytes of a block beside its rows: what the device keeps, barriers and sums


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    count = vectors(case.sizes["C"], case)
    if case.sizes["C"] >= 2**30:
        return "columns are counted in 32 bits"
    if variant == "row" and not fits_in_registers(count):
        return "a row of more than 128 KiB does not fit in a block's registers: cluster or online"
    if variant == "persistent" and (reason := _persistent_skip(case, device)):
        return reason
    if variant == "cluster" and device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    if variant == "cluster" and count > 8 * ROW_THREADS * VECTORS:
        return "a row of more than 1 MiB does not fit in the registers of 8 blocks: online"
    if variant == "cluster" and count <= CLUSTER_THREADS[0]:
        return "a row of less than a block's vectors needs no cluster: row"
    return None if case.mode == "forward" else backward.skip(case, variant, device)


def _persistent_skip(case, device):
    C = case.sizes["C"]
    if case.mode != "forward":
        return "is for mode=forward: row or cluster"
    if device.capability < (9, 0):
        return "copies of a whole row need compute capability 9.0"
    if not rows_are_aligned(case, C) or vectors(C, case) <= 32 * VECTORS:
        return "takes rows of whole vectors that are longer than a warp's: row"
    if too_large(C * case.itemsize, device, PERSISTENT_STATIC) or vectors(C, case) > ROW_THREADS * VECTORS:
        return "a row does not fit in a block's shared memory, or its registers: cluster or online"
    return None


def _persistent_blocks(case, device, config):
    """How many a multiprocessor has at once, by their registers, as softmax.cuh counts them, and by their shared memory."""
    C, lanes = case.sizes["C"], config["LANES"]
    registers = -(-(4 * -(-vectors(C, case) // lanes) + 32) // 8) * 8
    memory = config["num_stages"] * C * case.itemsize + PERSISTENT_STATIC
    return max(1, min(65536 // (lanes * registers), shared_memory(device) // memory))


def config(case, variant, device):
    """The tunables; in the backward modes they are those of the backward launch."""
    return (forward_config if case.mode == "forward" else backward.config)(case, variant, device)


def forward_config(case, variant, device):
    (R, C), sms = case.size("R", "C"), multiprocessors(device)
    count = vectors(C, case)
    if variant == "persistent":
        lanes = row_lanes(count, R, sms)
        chosen = [{"LANES": lanes, "num_stages": stages} for stages in (1, 2, 3)]
        # blocks compute beside each other, stages only load: the most blocks, and then the most rows on their way
        return max(
            (own for own in chosen if fits(case, variant, device, own) is None),
            key=lambda own: (_persistent_blocks(case, device, own), own["num_stages"]),
        )
    if variant == "row":
        lanes = row_lanes(count, R, sms)
        # many short rows: a thread's two vectors on their way fill the memory's queues, and rows share a warp's exchanges
        many = R * lanes >= 4 * RESIDENT_THREADS * sms and lanes <= 32 and lanes < 2 * count <= 4 * lanes
        return {"LANES": max(4, lanes // 2) if many else lanes}
    return cluster_config(count, R, sms) if variant == "cluster" else {"num_warps": online_warps(count)}


def cluster_config(count, R, multiprocessors):
    """Blocks of a row of `count` vectors, and their warps: small blocks before large ones, because they begin and end apart from
    each other; but few rows take all the blocks they can."""
    sizes = (8,) if multiprocessors > 2 * R else (2, 4, 8)
    lanes, blocks = next((n, b) for n in CLUSTER_THREADS for b in sizes if count <= b * n * VECTORS)
    return {"CLUSTER": blocks, "num_warps": lanes // 32}


def fits(case, variant, device, config):
    if case.mode != "forward":
        return backward.fits(case, variant, device, config)
    C = case.sizes["C"]
    if variant == "row":
        return row_fits(C, config, case)
    if variant == "persistent":
        return (
            row_fits(C, config, case)
            or not_one_of("LANES", config["LANES"], (128, 256, 512, 1024))
            or not_one_of("num_stages", config["num_stages"], (1, 2, 3, 4, 6))
            or too_large(config["num_stages"] * C * case.itemsize, device, PERSISTENT_STATIC)
        )
    if reason := not_one_of("num_warps", config["num_warps"], (4, 8, 16, 32)):
        return reason
    if variant == "online":
        return None
    count, most = vectors(C, case), config["CLUSTER"] * config["num_warps"] * 32 * VECTORS
    if count > most:
        return f"a row is {count} vectors of 16 bytes; the registers of a cluster of that size hold {most}"
    return not_one_of("CLUSTER", config["CLUSTER"], (2, 4, 8))


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
    if variant == "persistent":
        lanes, stages, held = config["LANES"], config["num_stages"], -(-vectors(C, case) // config["LANES"])
        program = instance(FILE, "persistent", TYPES[case.dtype], lanes, held, stages)
        grid = min(R, multiprocessors(device) * _persistent_blocks(case, device, config))
        return (Launch(program, grid, lanes, stages * C * case.itemsize, dtypes=dtypes, sizes=(R, C)),)
    block = 32 * config["num_warps"]
    if variant == "online":
        return (Launch(instance(FILE, "online", *head, block), R, block, dtypes=dtypes, sizes=(C,)),)
    blocks = config["CLUSTER"]
    program = instance(FILE, "cluster", *head, blocks, block, -(-vectors(C, case) // (block * blocks)))
    return (Launch(program, R * blocks, block, dtypes=dtypes, sizes=(C,)),)


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
