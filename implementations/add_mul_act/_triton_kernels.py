"""add_mul_act in Triton: the kernel that triton.py and jax_triton.py both launch, for both variants."""

import triton
import triton.language as tl

from implementations._pointwise import VECTOR_BYTES, share
from implementations._triton import TYPES, Launch, activate, vector_columns, vectors


def launches(case, variant, device):
    """One launch. `in_place` passes x as y."""
    M, N = case.size("M", "N")
    pointer, vector = TYPES[case.dtype], VECTOR_BYTES // case.itemsize
    per_thread, threads = share(M * N, case.itemsize, device.multiprocessors or 132)
    block = per_thread * threads * vector
    signature = dict.fromkeys(("x", "z", "multiplier", "b"), pointer)
    signature |= {"count": "i32" if M * N < 2**31 else "i64", "y": pointer}
    options = {"N": N, "ACTIVATION": case.options["activation"], "BLOCK": block, "VECTOR": vector}
    return (Launch(add_mul_act, signature, options, (triton.cdiv(M * N, block),), threads // 32, 1),)


@triton.jit(do_not_specialize=["count"])
def add_mul_act(
    x, z, multiplier, b, count, y,
    N: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """BLOCK of the `count` elements of x, z and y; x and y may be the same array, and y is None for x.

    Only the last program has a mask, because a mask for each element would split the vectors.
    """
    if y is None:
        y = x
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = vectors(BLOCK, VECTOR)
    x += start
    z += start
    y += start
    scale = tl.load(multiplier).to(tl.float32)
    bias = tl.load(b + vector_columns(start, N, BLOCK, VECTOR)).to(tl.float32)
    left = count - start
    if left >= BLOCK:
        total = tl.load(x + i).to(tl.float32) + scale * tl.load(z + i).to(tl.float32) + bias
        tl.store(y + i, activate(total, ACTIVATION).to(y.dtype.element_ty))
    else:
        inside = i < left
        total = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
        total += scale * tl.load(z + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + i, activate(total + bias, ACTIVATION).to(y.dtype.element_ty), mask=inside)
