"""splacc in Triton: the kernel that triton.py and jax_triton.py both launch, once in every variant.

A program has a tile of y. It multiplies A with both halves of B in one pass over A, in the way of the variant
(_shared/triton/gated_matmul.py), and combines the sums in registers: C is never stored.
"""

import triton
import triton.language as tl

from implementations._shared.triton import gated_backward
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.gated_matmul import launch, place, products, store_tile


def launches(case, variant, device, config):
    """The one launch; in the backward modes those of gated_backward.py."""
    if case.mode != "forward":
        behind = gated_backward.backward_launches(case, config, "splacc")
        return behind if case.mode == "backward" else (gated_backward.forward_launch(case, device, "splacc"), *behind)
    return (launch(splacc_tile, ("A", "B"), {}, case, variant, config),)


@triton.jit(do_not_specialize=["M"])
def splacc_tile(
    A, B, M, y,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, INTERLEAVED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A tile of y. With INTERLEAVED, B's columns alternate between the halves."""
    rows, first, columns, inside = place(M, N, BLOCK_M, BLOCK_N, GROUP)
    left, right = products(
        A, B, M, rows, first, K, N, NK, INTERLEAVED, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K
    )  # fmt: skip
    store_tile(y, activate(left, "sigmoid") * activate(right, "tanh"), M, rows, columns, inside, N)
