"""lola in JAX through jax-triton: triton.py's kernels and variants."""

import jax
import jax.numpy as jnp

from fusebench.backends.jax_triton import triton_call
from implementations.lola._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"row": (), "batched_row": (), "multirow": ("one_pass",), "multirow_ws": ("one_pass",)}


def prepare(case, variant, x, W, b):
    """multirow_ws: the column sums of W in float32."""
    return (W.sum(0 if case.options["w_layout"] == "kn" else 1, dtype=jnp.float32),) if variant == "multirow_ws" else ()


def build(case, variant, device):
    (launch,) = launches(case, variant, device)
    M, N = case.size("M", "N")

    def call(x, W, b, *colsum):
        return triton_call(
            *(x, W, b, *colsum, M),
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
