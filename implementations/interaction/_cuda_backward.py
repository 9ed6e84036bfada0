"""interaction's backward modes in CUDA C++ (cuda_backward.cu): one launch in either form, and nothing is kept but the inputs.

The only tunable is BLOCK_M, the samples of a block, of dot, but one where dot_gradient_wide has it.
"""

from math import gcd
from pathlib import Path

import numpy as np

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.gpu import is_ieee, multiprocessors

FILE = Path(__file__).with_name("cuda_backward.cu")
SAMPLES = 8, 4, 2, 1
SIMT_THREADS = 128
COLUMNS = 128  # of a sample's vectors that dot_gradient_simt holds at once
OUTER_THREADS, OUTER_STATIC = 512, 32 << 10


def skip(case, device):
    """Why it cannot run the case, or None."""
    if case.options["form"] == "outer":
        return too_large(_outer_bytes(case), device, OUTER_STATIC)
    return too_large(_bytes(case, 1), device)


def kernel_of(case):
    """The kernel that takes the case of dot."""
    if case.sizes["F"] <= 31:
        return "dot_gradient_simt" if is_ieee(case) else "dot_gradient_tensor"
    return "dot_gradient_simt" if case.dtype == "float32" else "dot_gradient_wide"


def config(case, device):
    """The most samples of a block that leave a multiprocessor two blocks, and every multiprocessor one."""
    if case.options["form"] == "outer":
        return {}
    if kernel_of(case) == "dot_gradient_wide":
        return {"BLOCK_M": 1}
    enough = multiprocessors(device)
    fitting = (
        s for s in SAMPLES if too_large(2 * _bytes(case, s), device) is None and -(-case.sizes["M"] // s) >= enough
    )
    return {"BLOCK_M": next(fitting, 1)}


def fits(case, device, config):
    """Why a config cannot run, or None."""
    if case.options["form"] == "outer":
        return None
    samples = config["BLOCK_M"]
    known = (1,) if kernel_of(case) == "dot_gradient_wide" else SAMPLES
    return not_one_of("BLOCK_M", samples, known) or too_large(_bytes(case, samples), device)


def _rows(case):
    """Vectors, made up to rows of the tensor cores."""
    return (case.sizes["F"] // 16 + 1) * 16


def _pitch(case):
    """Of dot_gradient_tensor, bytes of a vector in shared memory; of the others of a row of S: dot_gradient_wide's bytes, dot_gradient_simt's floats."""
    F, D = case.size("F", "D")
    if kernel_of(case) == "dot_gradient_simt":
        return -(-(F + 1) // 8) * 8
    return (-(-D // 16) * 16 if kernel_of(case) == "dot_gradient_tensor" else _rows(case)) * case.itemsize + 16


def _wide(case):
    """Of dot_gradient_wide (columns of a sample's vectors that are in shared memory at once, and those that a warp multiplies at once): fewer
    of many vectors, whose S takes the most of it."""
    columns = min(64, -(-case.sizes["D"] // 16) * 16)
    return min(128 if case.sizes["F"] < 160 else columns, -(-case.sizes["D"] // columns) * columns), columns


def _columns(case):
    return min(COLUMNS, -(-case.sizes["D"] // 4) * 4)


def _sample_bytes(case):
    F = case.sizes["F"]
    if kernel_of(case) == "dot_gradient_wide":
        depth, _ = _wide(case)
        return _rows(case) * (_pitch(case) + depth * case.itemsize + 16) + depth * case.itemsize
    if kernel_of(case) == "dot_gradient_tensor":
        return _rows(case) * _pitch(case) + -(-F * (F + 1) // 2 * case.itemsize // 16) * 16
    return (F + 1) * (_pitch(case) + _columns(case)) * 4


def _bytes(case, samples):
    """Shared memory of a block of dot with so many samples."""
    return samples * _sample_bytes(case)


def _outer_bytes(case):
    F, D = case.size("F", "D")
    return 3 * (F + 1) * D * 4


def launch(case, config):
    """The one launch."""
    M, F, D = case.size("M", "F", "D")
    T, sizes, dtypes = TYPES[case.dtype], (np.int32(F), np.int32(D)), (case.dtype,) * 5
    vector = 16 // case.itemsize
    if case.options["form"] == "outer":
        program = instance(FILE, "outer_gradient", T, (F + 1) * D % vector == 0)
        return Launch(program, M, OUTER_THREADS, _outer_bytes(case), dtypes=dtypes, sizes=sizes)
    samples = config["BLOCK_M"]
    grid, memory, pitch = -(-M // samples), _bytes(case, samples), np.int32(_pitch(case))
    if kernel_of(case) == "dot_gradient_wide":
        program = instance(FILE, "dot_gradient_wide", T, F, D, *_wide(case), gcd(16, D * case.itemsize))
        return Launch(program, M, 2 * _rows(case), memory, dtypes=dtypes)
    if kernel_of(case) == "dot_gradient_tensor":
        program = instance(FILE, "dot_gradient_tensor", T, D % vector == 0, F // 16 + 1, samples)
        own = M, *sizes, pitch, np.int32(_sample_bytes(case))
        return Launch(program, grid, 32 * samples, memory, dtypes=dtypes, sizes=own)
    program = instance(FILE, "dot_gradient_simt", T, samples)
    own = M, *sizes, pitch, np.int32(_columns(case))
    return Launch(program, grid, SIMT_THREADS, memory, dtypes=dtypes, sizes=own)


def gradient(case, config):
    """A function ((dense, sparse), dy) → (ddense, dsparse)."""
    run = launch(case, config).returning({3: case.size("M", "D"), 4: case.size("M", "F", "D")})
    return lambda residuals, dy: run(*residuals, dy)
