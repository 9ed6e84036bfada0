"""padded_softmax_v in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.padded_softmax_v._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}


def build(case, variant, device):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D), jitted."""
    (launch,) = launches(case, variant, device)

    def call(att, v, n_padd):
        return triton_call(
            *(att, v, n_padd),
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct(v.shape, v.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
