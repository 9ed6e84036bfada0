"""splacc in JAX through jax-triton: triton.py's kernel and variants."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations._triton_gated import interleave
from implementations.splacc._triton_kernels import launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"two_accumulators": (), "interleaved": ()}


def prepare(case, variant, A, B):
    """interleaved: B with the columns of its halves alternating."""
    return (interleave(B, case),) if variant == "interleaved" else ()


def build(case, variant, device):
    """call(A (M, K), B, *prepared) → (M, N), jitted."""
    (launch,) = launches(case, variant, device)
    M, N = case.size("M", "N")

    def call(A, B, prepared=None):
        return triton_call(
            *(A, B if prepared is None else prepared, M),
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct((M, N), A.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
