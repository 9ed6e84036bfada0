"""The persistent launch of interaction's dots in CUDA (_persistent.cuh): a warp has num_stages samples in its ring, a block, which
a multiprocessor has one of, num_warps of them."""

from pathlib import Path

import numpy as np

from implementations._shared.cuda.interactions import columns_of_dots, kernel_of, step, vector
from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.gpu import multiprocessors

FILE = Path(__file__).with_name("cuda.cu")


def skip(case, device):
    """Why the case has no such launch, or None."""
    if case.options["form"] == "outer":
        return "outer products read a sample once anyway: default"
    if device.capability < (9, 0):
        return "copies of a whole sample need compute capability 9.0: default"
    if kernel_of(case) != "dot_tensor" or case.sizes["F"] > 31:
        return "multiplies up to 32 vectors on tensor cores: default"
    if case.sizes["D"] % vector(case):
        return "samples that are no multiple of 16 bytes cannot be copied whole: default"
    return fits(case, device, {"num_stages": 2, "num_warps": 4})


def config(case, device):
    """As many warps as have three samples each on their way: the last ones of long samples are few."""
    chosen = ({"num_stages": stages, "num_warps": warps} for warps in (8, 4) for stages in (4, 3, 2))
    return next(own for own in chosen if fits(case, device, own) is None)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    stages, warps = config["num_stages"], config["num_warps"]
    return (
        not_one_of("num_stages", stages, (2, 3, 4, 6, 8))
        or not_one_of("num_warps", warps, (4, 8))
        or too_large(shared_bytes(case, stages, warps), device, 8 * stages * warps)
    )


def shared_bytes(case, stages, warps):
    """Of a block: for each warp its samples, and as many rows of y as are whole vectors together."""
    F, D = case.size("F", "D")
    return warps * (stages * (F + 1) * D + vector(case) * columns_of_dots(case)) * case.itemsize


def launch(case, device, config):
    M, F, D = case.size("M", "F", "D")
    stages, warps = config["num_stages"], config["num_warps"]
    program = instance(FILE, "dot_persistent", TYPES[case.dtype], D % step(case) == 0, F // 8 + 1, stages, warps)
    grid = min(multiprocessors(device), -(-M // vector(case)))
    memory = shared_bytes(case, stages, warps)
    return Launch(program, grid, 32 * warps, memory, dtypes=(case.dtype,) * 3, sizes=(M, np.int32(F), np.int32(D)))
