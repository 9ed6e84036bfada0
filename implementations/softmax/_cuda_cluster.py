"""The variant `cluster` of softmax in CUDA C++ (_cluster.cuh), forward and backward: rows in the shared memory of 1 to 8 blocks.

`count` is the vectors of 16 bytes of a row, or in the backward modes of one of y and one of dy, which a block holds side by side.
"""

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.cuda.softmax import vectors
from implementations._shared.gpu import multiprocessors, rows_are_aligned, shared_memory

CLUSTERS, WARPS = (1, 2, 4, 8), (4, 8, 16, 32)
SHORTEST = 256  # vectors of a row, below which the blocks would have next to nothing
BARRIERS = 33  # enough for the chunks of all of a block's shared memory by four warps, and one of the cluster


def skip(columns, case, device):
    """Why no config can hold a row of so many vectors, or None."""
    if device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    if columns <= SHORTEST:
        return "a row of at most 4 KiB needs no cluster: row"
    if shared(-(-held(columns, case) // 8), 8, 32) > shared_memory(device):
        return "a row does not fit in the shared memory of 8 blocks: online"
    return None


def held(columns, case):
    """Vectors of all arrays of a row."""
    return columns if case.mode == "forward" else 2 * columns


def config(count, R, device):
    """As few blocks as leave room for two rows on a multiprocessor, because those of a cluster wait for each other; but few rows take all
    that they can. Warps as the times of eight shapes on an H200 were: sixteen from 32 KiB a block on, else eight."""
    sizes = (8,) if multiprocessors(device) > 2 * R else (1, 2, 4)
    blocks = next((b for b in sizes if 2 * shared(-(-count // b), b, 16) <= shared_memory(device)), 8)
    return {"CLUSTER": blocks, "num_warps": 16 if count >= 2048 * blocks else 8}


def fits(count, device, config):
    """Why a config cannot run, or None."""
    blocks, warps = config["CLUSTER"], config["num_warps"]
    if reason := not_one_of("CLUSTER", blocks, CLUSTERS) or not_one_of("num_warps", warps, WARPS):
        return reason
    return too_large(16 * -(-count // blocks), device, shared(0, blocks, warps))


def shared(piece, blocks, warps):
    """Bytes of shared memory that a block takes: what the device keeps, the vectors, barriers, a place for each warp of the cluster."""
    return 1024 + 16 * piece + 8 * BARRIERS + 16 * warps * blocks


def launch(file, template, case, config, dtypes):
    """The launch of a config that fits."""
    (R, C), blocks, block = case.size("R", "C"), config["CLUSTER"], 32 * config["num_warps"]
    length = -(-vectors(C, case) // blocks)
    program = instance(file, template, TYPES[case.dtype], rows_are_aligned(case, C), blocks, block)
    return Launch(program, R * blocks, block, 16 * held(length, case), dtypes=dtypes, sizes=(C, length))
