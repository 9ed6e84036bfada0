"""launch in Triton: the copy that triton.py and jax_triton.py both launch."""

import triton
import triton.language as tl

from implementations._shared.triton.launch import TYPES, Launch


def launches(case, variant, device):
    """One launch: a program for every 1024 elements, 8 for each thread of 4 warps."""
    N, block = case.sizes["N"], 1024
    pointer = TYPES[case.dtype]
    signature = {"x": pointer, "N": "i32" if N < 2**31 else "i64", "y": pointer}
    return (Launch(copy, signature, {"BLOCK": block}, (triton.cdiv(N, block),), 4, 1),)


@triton.jit
def copy(x, N, y, BLOCK: tl.constexpr):
    """y[i] = x[i] for i < N."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < N), mask=i < N)
