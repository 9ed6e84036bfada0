"""splacc in Triton: the kernel that triton.py and jax_triton.py both launch, once in every variant.

A program has a tile of y. It multiplies A with both halves of B in one pass over A, in the way of the variant
(_shared/triton/gated_matmul.py), and combines the sums in registers: C is never stored.
"""

import triton
import triton.language as tl

from implementations._shared.triton import gated_backward, gated_matmul
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.gated_matmul import launch, place, products, store_tile


def launches(case, variant, device, config):
    """The one launch; in the backward modes those of gated_backward.py."""
    if case.mode == "forward":
        return (forward_launch(case, variant, config),)
    return gated_backward.launches(case, variant, device, config, "splacc", alone)


def forward_launch(case, variant, config):
    """That of mode=forward."""
    return launch(splacc_tile, ("A", "B"), {}, case, variant, config)


def alone(case, device):
    """That of mode=forward with a tile of its own, for backward modes that keep nothing."""
    return forward_launch(case, "two_accumulators", gated_matmul.config(case, "two_accumulators", device))


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
