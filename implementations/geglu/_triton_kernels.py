"""geglu in Triton: the kernel that triton.py and jax_triton.py both launch, once in every variant.

A program has a tile of y. It multiplies x with both halves of W in one pass over x, in the way of the variant
(_shared/triton/gated_matmul.py), and adds the biases and gates in registers: Z is never stored.
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
    return gated_backward.launches(case, variant, device, config, "geglu", alone)


def forward_launch(case, variant, config):
    """That of mode=forward."""
    return launch(geglu_tile, ("x", "W", "b"), {"ACTIVATION": case.options["activation"]}, case, variant, config)


def alone(case, device):
    """That of mode=forward with a tile of its own, for backward modes that keep nothing."""
    return forward_launch(case, "two_accumulators", gated_matmul.config(case, "two_accumulators", device))


@triton.jit(do_not_specialize=["M"])
def geglu_tile(
    x, W, b, M, y,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, INTERLEAVED: tl.constexpr, PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A tile of y. With INTERLEAVED, W's columns alternate between the halves; b is as it was in either case."""
    rows, first, columns, inside = place(M, N, BLOCK_M, BLOCK_N, GROUP)
    left, right = products(
        x, W, M, rows, first, K, N, NK, INTERLEAVED, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K
    )  # fmt: skip
    left += tl.load(b + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    right += tl.load(b + N + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    store_tile(y, left * activate(right, ACTIVATION), M, rows, columns, inside, N)
