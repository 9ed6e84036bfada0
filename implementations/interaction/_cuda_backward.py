"""interaction's backward modes in CUDA C++ (cuda_backward.cu): one launch in either form, and nothing is kept but the inputs.

The only tunable is BLOCK_M, the samples of a block, of dot.
"""

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


def by_tensor_cores(case):
    """Whether dot_gradient_tensor takes the case."""
    return case.sizes["F"] <= 31 and not is_ieee(case)


def config(case, device):
    """The most samples of a block that leave a multiprocessor two blocks, and every multiprocessor one."""
    if case.options["form"] == "outer":
        return {}
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
    return not_one_of("BLOCK_M", samples, SAMPLES) or too_large(_bytes(case, samples), device)


def _pitch(case):
    """Of dot_gradient_tensor, bytes of a vector in shared memory; of dot_gradient_simt, floats of a row of S."""
    F, D = case.size("F", "D")
    return -(-D // 16) * 16 * case.itemsize + 16 if by_tensor_cores(case) else -(-(F + 1) // 8) * 8


def _columns(case):
    return min(COLUMNS, -(-case.sizes["D"] // 4) * 4)


def _sample_bytes(case):
    F = case.sizes["F"]
    if by_tensor_cores(case):
        return (F // 16 + 1) * 16 * _pitch(case) + -(-F * (F + 1) // 2 * case.itemsize // 16) * 16
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
    if by_tensor_cores(case):
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
