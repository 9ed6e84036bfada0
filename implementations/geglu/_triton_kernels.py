"""geglu in Triton: the kernel that triton.py and jax_triton.py both launch, once in every variant.

A program has a tile of y. It multiplies x with both halves of W in one pass over x, in the way of the variant
(_shared/triton/gated_matmul.py), and adds the biases and gates in registers: Z is never stored.
"""

import triton
import triton.language as tl

from implementations._shared.triton import gated_backward
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.gated_matmul import launch, place, products, store_tile


def launches(case, variant, device, config):
    """The one launch; in the backward modes those of gated_backward.py."""
    if case.mode != "forward":
        behind = gated_backward.backward_launches(case, config, "geglu")
        return behind if case.mode == "backward" else (gated_backward.forward_launch(case, device, "geglu"), *behind)
    constexprs = {"ACTIVATION": case.options["activation"]}
    return (launch(geglu_tile, ("x", "W", "b"), constexprs, case, variant, config),)


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
