"""interaction in CUDA C++ (cuda.cu, which describes the algorithms): one launch in either form."""

from pathlib import Path

import numpy as np

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large, unsupported
from implementations._shared.gpu import is_ieee
from implementations.interaction import _limits

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"
EXPECT = (
    {"variant": "default", "case": "main", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
# BLOCK_M: samples of a block, or rows of a sample's outer product. BLOCK_K: elements of D that are on their way at once
TUNABLES = {"default": {"BLOCK_M": (1, 2, 4, 8, 16, 32), "BLOCK_K": (16, 32, 64, 128)}}

FILE = Path(__file__).with_suffix(".cu")
FIXED = "dot_wide", "outer_flat"  # kernels without tunables
STAGED_BYTES = 48 << 10  # of a block's rows of y: beyond, they are stored where they belong, element by element


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    if case.options["form"] == "dot" and case.precision == "tf32" and case.sizes["F"] > 31:
        return "multiplies more than 32 vectors without tensor cores: precision=ieee runs it"
    return _limits.skip(case, variant, device)


def kernel_of(case):
    """The kernel that the case takes."""
    F, D = case.size("F", "D")
    if case.options["form"] == "outer":
        return "outer_flat" if D % vector(case) else "outer_rows"
    return "dot_wide" if F > 31 else "dot_simt" if is_ieee(case) else "dot_tensor"


def config(case, variant, device):
    kernel, D = kernel_of(case), case.sizes["D"]
    if kernel in FIXED:
        return {}
    if kernel == "outer_rows":
        return {"BLOCK_M": 16}
    samples = 8 if case.dtype != "float32" else 4  # the rows of so many samples are whole vectors
    if kernel == "dot_tensor":
        steps = -(-D // step(case)) if D % vector(case) == 0 else 1
        return {"BLOCK_M": samples, "BLOCK_K": step(case) * min(4, 1 << (steps - 1).bit_length())}
    depths = (depth for depth in (128, 64, 32, 16) if depth < 2 * D or depth == 16)
    found = ({"BLOCK_M": samples, "BLOCK_K": depth} for depth in depths)
    return next(own for own in found if fits(case, variant, device, own) is None)


def fits(case, variant, device, config):
    kernel = kernel_of(case)
    if kernel in FIXED:
        return None
    rows = config["BLOCK_M"]
    if kernel == "outer_rows":
        return not_one_of("BLOCK_M", rows, range(1, 257))
    depth = config["BLOCK_K"]
    if rows > 32 or rows < 1 or rows * case.itemsize % 16:
        return f"BLOCK_M is {rows}: a block has at most 32 samples, whose rows are together whole vectors of 16 bytes"
    if kernel == "dot_tensor":
        # 4 of 4 bands: 64 registers of loads
        return not_one_of("BLOCK_K", depth, [step(case) * unroll for unroll in (1, 2, 4)])
    return not_one_of("BLOCK_K", depth, (16, 32, 64, 128)) or too_large(shared_bytes(case, config), device)


def launches(case, variant, device, config):
    M, F, D = case.size("M", "F", "D")
    kernel, rows, depth = kernel_of(case), config.get("BLOCK_M"), config.get("BLOCK_K")
    T, sizes, aligned, dtypes = TYPES[case.dtype], (np.int32(F), np.int32(D)), D % vector(case) == 0, (case.dtype,) * 3
    N = (F + 1) * D
    if kernel == "outer_flat":
        grid = -(-M * N * N // (256 * vector(case)))
        return (Launch(instance(FILE, kernel, T), grid, 256, dtypes=dtypes, sizes=(M, *sizes)),)
    if kernel == "outer_rows":
        vectors = N // vector(case)
        blocks = -(-vectors // 256)
        block = -(-vectors // (blocks * 32)) * 32
        grid = M * blocks * -(-N // rows)
        return (Launch(instance(FILE, kernel, T, rows), grid, block, dtypes=dtypes, sizes=sizes),)
    if kernel == "dot_wide":
        bands = F // 32 + 1
        return (Launch(instance(FILE, kernel, T), M * (bands * (bands + 1) // 2), 256, dtypes=dtypes, sizes=sizes),)
    staged = staged_bytes(case, rows) > 0
    if kernel == "dot_simt":
        program = instance(FILE, kernel, aligned, staged, depth, rows)
    else:
        program = instance(FILE, kernel, T, aligned, staged, F // 8 + 1, depth // step(case), rows)
    memory = shared_bytes(case, config)
    return (Launch(program, -(-M // rows), rows * 32, memory, dtypes=dtypes, sizes=(M, *sizes)),)


def vector(case):
    """Elements of 16 bytes."""
    return 16 // case.itemsize


def step(case):
    """Elements of D that the four lanes of a vector load at once, for tensor cores."""
    return 4 * vector(case)


def staged_bytes(case, samples):
    """Shared memory for a block's rows of y; none where they would take too much of it."""
    F, D = case.size("F", "D")
    size = samples * (D + F * (F + 1) // 2) * case.itemsize
    return size if size <= STAGED_BYTES else 0


def shared_bytes(case, config):
    """Shared memory of a block of `dot_simt` or `dot_tensor`: its rows of y, and what dot_simt keeps of its vectors."""
    kept = 0
    if is_ieee(case):
        kept = config["BLOCK_M"] * 4 * (case.sizes["F"] // 4 + 1) * (config["BLOCK_K"] | 4) * 4
    return staged_bytes(case, config["BLOCK_M"]) + kept


def build(case, variant, device, config):
    import torch

    M, F, D = case.size("M", "F", "D")
    (described,) = launches(case, variant, device, config)
    launch, sizes = described.bind(), described.sizes
    width = D + F * (F + 1) // 2 if case.options["form"] == "dot" else ((F + 1) * D) ** 2

    def call(dense, sparse):
        y = torch.empty((M, width), dtype=dense.dtype, device=dense.device)
        launch(dense, sparse, y, *sizes)
        return y

    return call
