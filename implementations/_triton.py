"""What the Triton implementations of all kernels share: the description of a launch, and device functions.

A `_triton_kernels.py` holds the @triton.jit bodies of its kernel and `launches(case, variant, device)`: what a call of that
variant launches, in order. triton.py and jax_triton.py run from it, and tools compile from it without a GPU.
"""

import functools
from typing import Any, NamedTuple

import triton
import triton.language as tl

TYPES = {
    "float32": "*fp32",
    "float16": "*fp16",
    "bfloat16": "*bf16",
}  # storage dtype → Triton's type of a pointer to it


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


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """The activation of float32 z by name (_mathematics.py). z sigmoid(2u) is 0.5 z (1 + tanh(u)) without its cancellation
    at u < 0."""
    if ACTIVATION == "gelu_tanh":
        z = z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))  # 2 sqrt(2 / pi)
    elif ACTIVATION == "gelu_erf":
        z = 0.5 * z * (1 + tl.erf(0.7071067811865476 * z))  # 1 / sqrt(2)
    elif ACTIVATION == "relu":
        z = tl.where(z < 0, 0.0, z)  # keeps NaN, which a maximum with 0 loses
    elif ACTIVATION == "sigmoid":
        z = tl.sigmoid(z)
    elif ACTIVATION == "tanh":
        z = tanh(z)
    elif ACTIVATION == "silu":
        z = z * tl.sigmoid(z)
    return z


@triton.jit
def tanh(z):
    """tanh of float32 z without libdevice, which the interpreter lacks: (1 - e) / (1 + e) with e = exp(-2 |z|), and below
    1/4, where 1 - e cancels, the odd Taylor polynomial to the 11th power (its error there is below 2^-26 of z)."""
    e = tl.exp(-2.0 * tl.abs(z))
    far = (1.0 - e) / (1.0 + e)
    s = z * z
    near = 1.0 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835 + s * (-1382 / 155925)))))
    return tl.where(tl.abs(z) < 0.25, z * near, tl.where(z < 0, -far, far))
