"""The launch kernel in Triton, and `Launch`, which describes one launch of any Triton kernel.

A `_triton_kernels.py` holds the @triton.jit bodies of its kernel and `launches(case, variant, device)`: what a call of that
variant launches, in order. triton.py and jax_triton.py run from it, and tools compile from it without a GPU.
"""

import functools
from typing import Any, NamedTuple

import triton
import triton.language as tl

TYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}  # storage dtype → Triton's type of a pointer to it


class Launch(NamedTuple):
    """One launch of a kernel, enough to compile it ahead of time and to run it."""

    kernel: Any
    signature: dict[str, str]  # the run-time arguments in order, outputs last, with their Triton types
    constexprs: dict[str, Any]  # the compile-time arguments
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int

    def bind(self):
        """A function of the run-time arguments alone, with everything else settled beforehand."""
        return functools.partial(
            self.kernel[self.grid], **self.constexprs, num_warps=self.num_warps, num_stages=self.num_stages
        )


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None; a kernel with limits of its own asks this first."""
    if device.type == "cpu" and case.dtype == "bfloat16":
        return "Triton's interpreter computes bfloat16 wrongly"
    return None


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
