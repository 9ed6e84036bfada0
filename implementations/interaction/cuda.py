"""interaction in CUDA C++ (cuda.cu, which describes the algorithms): one launch in either form."""

from pathlib import Path

import numpy as np

from implementations._shared.cuda.launch import TYPES, Plan, instance, unsupported
from implementations._shared.gpu import is_ieee
from implementations.interaction import _limits

BACKEND = "torch"
VARIANTS = {"default": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
STAGED_BYTES = 48 << 10  # of a block's rows of y: beyond, they are stored where they belong, element by element


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    if case.options["form"] == "dot" and case.precision == "tf32" and case.sizes["F"] > 31:
        return "multiplies more than 32 vectors without tensor cores: precision=ieee runs it"
    return _limits.skip(case, variant, device)


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """Chooses the kernel, its tile and its grid from the sizes."""
    return _plan_outer(case) if case.options["form"] == "outer" else _plan_dot(case)


def _plan_dot(case):
    M, F, D = case.size("M", "F", "D")
    dtype, vector, sizes = TYPES[case.dtype], 16 // case.itemsize, (np.int32(F), np.int32(D))
    if F > 31:
        bands = F // 32 + 1
        return Plan(instance(FILE, "dot_wide", dtype), M * (bands * (bands + 1) // 2), 256, sizes=sizes)
    width = D + F * (F + 1) // 2
    samples = 8 if case.dtype != "float32" else 4  # the rows of so many samples are whole vectors
    staged = samples * width * case.itemsize <= STAGED_BYTES
    shared_memory = samples * width * case.itemsize if staged else 0
    if is_ieee(case):
        depth = min(128, max(16, 1 << (D - 1).bit_length()))
        shared_memory += samples * 4 * (F // 4 + 1) * (depth | 4) * 4
        program = instance(FILE, "dot_simt", D % vector == 0, staged, depth, samples)
    else:
        steps = -(-D // (4 * vector)) if D % vector == 0 else 1
        unroll = min(4, 1 << (steps - 1).bit_length())  # 4 of 4 bands: 64 registers of loads
        program = instance(FILE, "dot_tensor", dtype, D % vector == 0, staged, F // 8 + 1, unroll, samples)
    return Plan(program, -(-M // samples), samples * 32, shared_memory, sizes=(M, *sizes))


def _plan_outer(case):
    M, F, D = case.size("M", "F", "D")
    dtype, vector, rows, sizes = TYPES[case.dtype], 16 // case.itemsize, 16, (np.int32(F), np.int32(D))
    N = (F + 1) * D
    if D % vector:
        return Plan(instance(FILE, "outer_flat", dtype), -(-M * N * N // (256 * vector)), 256, sizes=(M, *sizes))
    vectors = N // vector
    blocks = -(-vectors // 256)
    share = -(-vectors // blocks)
    block = -(-share // 32) * 32
    return Plan(instance(FILE, "outer_rows", dtype, rows), M * blocks * -(-N // rows), block, sizes=sizes)


def build(case, variant, device):
    import torch

    M, F, D = case.size("M", "F", "D")
    planned = plan(case, variant, device)
    launch = planned.bind()
    width = D + F * (F + 1) // 2 if case.options["form"] == "dot" else ((F + 1) * D) ** 2

    def call(dense, sparse):
        y = torch.empty((M, width), dtype=dense.dtype, device=dense.device)
        launch(dense, sparse, y, *planned.sizes)
        return y

    return call
