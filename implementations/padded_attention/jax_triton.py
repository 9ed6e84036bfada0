"""padded_attention in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.padded_attention._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D), jitted."""
    (launch,) = launches(case, variant, device)

    def call(q, k, v, n_padd):
        return triton_call(
            *(q, k, v, n_padd),
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
