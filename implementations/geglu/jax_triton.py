"""geglu in JAX through jax-triton: triton.py's kernel and variants."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations._triton_gated import interleave
from implementations.geglu._triton_kernels import launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"two_accumulators": (), "interleaved": ()}


def prepare(case, variant, x, W, b):
    """interleaved: W with the columns of its halves alternating."""
    return (interleave(W, case),) if variant == "interleaved" else ()


def build(case, variant, device):
    """call(x (M, K), W, b (2N,), *prepared) → (M, N), jitted."""
    (launch,) = launches(case, variant, device)
    M, N = case.size("M", "N")

    def call(x, W, b, prepared=None):
        return triton_call(
            *(x, W if prepared is None else prepared, b, M),
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
