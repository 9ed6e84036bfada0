"""fused_mlp in JAX through jax-triton: triton.py's kernels."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.fused_mlp._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"default": ("hidden",)}


def build(case, variant, device):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer), jitted."""
    (launch,) = launches(case, variant, device)
    M, layers = case.size("M", "LAYERS")

    def call(x, *weights):
        return triton_call(
            *(x, *weights, M),
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct((M, case.sizes[f"N{layers}"]), x.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
