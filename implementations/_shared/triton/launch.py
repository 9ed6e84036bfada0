"""What the Triton implementations of all kernels share: the description of a launch.

A `_triton_kernels.py` holds the @triton.jit bodies of its kernel and `launches(case, variant, device)`: what a call of that
variant launches, in order. triton.py and jax_triton.py run from it, and tools compile from it without a GPU.
"""

import functools
from typing import Any, NamedTuple

# storage dtype → Triton's type of a pointer to it
TYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}


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
