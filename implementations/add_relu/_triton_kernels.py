"""add_relu in Triton: the kernel that triton.py and jax_triton.py both launch, for both variants."""

import triton
import triton.language as tl

from implementations._shared.gpu import VECTOR_BYTES, multiprocessors, share
from implementations._shared.triton.elementwise import activate, last_elements, whole_vectors
from implementations._shared.triton.launch import TYPES, Launch


def launches(case, variant, device):
    """One launch. `in_place` passes x as y."""
    M, N = case.size("M", "N")
    pointer, vector = TYPES[case.dtype], VECTOR_BYTES // case.itemsize
    per_thread, threads = share(M * N, case.itemsize, multiprocessors(device))
    block = per_thread * threads * vector
    signature = {"x": pointer, "b": pointer, "count": "i32" if M * N < 2**31 else "i64", "y": pointer}
    options = {"N": N, "BLOCK": block, "VECTOR": vector}
    return (Launch(add_relu, signature, options, (triton.cdiv(M * N, block),), threads // 32, 1),)


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
