"""launch in Triton: the copy that triton.py and jax_triton.py both launch."""

import triton
import triton.language as tl

from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit

TUNABLES = {"default": {"BLOCK": (256, 512, 1024, 2048, 4096), "num_warps": (1, 2, 4, 8)}}


def config(case, variant, device):
    """The tunables: a program for every 1024 elements, 8 for each thread of 4 warps."""
    return {"BLOCK": 1024, "num_warps": 4}


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    return misfit(device, config, values=config["BLOCK"])


def launches(case, variant, device, config):
    """One launch."""
    N = case.sizes["N"]
    pointer = TYPES[case.dtype]
    signature = {"x": pointer, "N": "i32" if N < 2**31 else "i64", "y": pointer}
    return (launch_with(config, copy, signature, {}, (triton.cdiv(N, config["BLOCK"]),)),)


@triton.jit
def copy(x, N, y, BLOCK: tl.constexpr):
    """y[i] = x[i] for i < N."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < N), mask=i < N)
