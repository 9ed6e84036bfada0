"""add_mul_act in Triton: the kernel that triton.py and jax_triton.py both launch, for both variants."""

import triton
import triton.language as tl

from implementations._shared.gpu import VECTOR_BYTES, multiprocessors, share
from implementations._shared.triton.elementwise import activate, last_elements, whole_vectors
from implementations._shared.triton.launch import TYPES, Launch


def launches(case, variant, device):
    """One launch. `in_place` passes x as y."""
    M, N = case.size("M", "N")
    pointer, vector = TYPES[case.dtype], VECTOR_BYTES // case.itemsize
    per_thread, threads = share(M * N, case.itemsize, multiprocessors(device), inputs=2)
    block = per_thread * threads * vector
    signature = dict.fromkeys(("x", "z", "multiplier", "b"), pointer)
    signature |= {"count": "i32" if M * N < 2**31 else "i64", "y": pointer}
    options = {"N": N, "ACTIVATION": case.options["activation"], "BLOCK": block, "VECTOR": vector}
    return (Launch(add_mul_act, signature, options, (triton.cdiv(M * N, block),), threads // 32, 1),)


@triton.jit
def step(x, z, scale, b, y, i, columns, inside, ACTIVATION: tl.constexpr):
    """The elements at x + i and z + i, which are in these columns."""
    bias = tl.load(b + columns).to(tl.float32)
    total = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
    total += scale * tl.load(z + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + i, activate(total + bias, ACTIVATION).to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def add_mul_act(
    x, z, multiplier, b, count, y,
    N: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """BLOCK of the `count` elements of x, z and y; x and y may be the same array, and y is None for x."""
    if y is None:
        y = x
    start = tl.program_id(0).to(tl.int64) * BLOCK
    scale = tl.load(multiplier).to(tl.float32)
    i, columns, inside = whole_vectors(start, count, N, BLOCK, VECTOR)
    step(x + start, z + start, scale, b, y + start, i, columns, inside, ACTIVATION)
    if N % VECTOR != 0:  # noqa: SIM102 (one test when compiled, one in the kernel)
        if start + BLOCK > count:
            rest, rest_columns, rest_inside = last_elements(start, count, N, VECTOR)
            step(x + start, z + start, scale, b, y + start, rest, rest_columns, rest_inside, ACTIVATION)
