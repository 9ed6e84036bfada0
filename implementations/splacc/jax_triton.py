"""splacc in JAX through jax-triton: triton.py's kernel and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.triton.gated_matmul import TUNABLES, config, fits, interleave  # noqa: F401 (parts of the contract)
from implementations.splacc._triton_kernels import launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"two_accumulators": (), "interleaved": ()}


def prepare(case, variant, A, B):
    """interleaved: B with the columns of its halves alternating."""
    return (interleave(B, case),) if variant == "interleaved" else ()


def build(case, variant, device, chosen):
    """call(A (M, K), B, *prepared) → (M, N), jitted."""
    (launch,) = launches(case, variant, device, chosen)
    M, N = case.size("M", "N")

    def call(A, B, prepared=None):
        return run(launch, A, B if prepared is None else prepared, M, out=jax.ShapeDtypeStruct((M, N), A.dtype))

    return jax.jit(call)
