"""add_relu in Triton: the kernel that triton.py and jax_triton.py both launch, for both variants."""

import triton
import triton.language as tl

from implementations._shared.gpu import VECTOR_BYTES
from implementations._shared.triton import elementwise
from implementations._shared.triton.elementwise import activate, last_elements, whole_vectors
from implementations._shared.triton.launch import TYPES, launch_with

TUNABLES = {("default", "in_place"): {"BLOCK": (128, 256, 512, 1024, 2048, 4096, 8192), "num_warps": (1, 2, 4, 8)}}
INPUTS = 1  # of as many elements as y


def config(case, variant, device):
    """The tunables: elements of a block, and its warps."""
    return elementwise.config(case, device, INPUTS)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    return elementwise.fits(case, device, config, INPUTS)


def launches(case, variant, device, config):
    """One launch. `in_place` passes x as y."""
    M, N = case.size("M", "N")
    pointer, vector = TYPES[case.dtype], VECTOR_BYTES // case.itemsize
    signature = {"x": pointer, "b": pointer, "count": "i32" if M * N < 2**31 else "i64", "y": pointer}
    options = {"N": N, "VECTOR": vector}
    grid = (triton.cdiv(M * N, config["BLOCK"]),)
    return (launch_with(config, add_relu, signature, options, grid),)


@triton.jit
def step(x, b, y, i, columns, inside):
    """The elements at x + i, which are in these columns."""
    bias = tl.load(b + columns).to(tl.float32)
    value = activate(tl.load(x + i, mask=inside, other=0.0).to(tl.float32) + bias, "relu")
    tl.store(y + i, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def add_relu(x, b, count, y, N: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """BLOCK of the `count` elements of x and y, which may be the same array; y is None for x."""
    if y is None:
        y = x
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i, columns, inside = whole_vectors(start, count, N, BLOCK, VECTOR)
    step(x + start, b, y + start, i, columns, inside)
    if N % VECTOR != 0:  # noqa: SIM102 (one test when compiled, one in the kernel)
        if start + BLOCK > count:
            rest, rest_columns, rest_inside = last_elements(start, count, N, VECTOR)
            step(x + start, b, y + start, rest, rest_columns, rest_inside)
