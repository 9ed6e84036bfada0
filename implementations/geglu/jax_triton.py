"""geglu in JAX through jax-triton: triton.py's kernel and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.triton.gated_matmul import TUNABLES, config, fits, interleave  # noqa: F401 (parts of the contract)
from implementations.geglu._triton_kernels import launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"two_accumulators": (), "interleaved": ()}


def prepare(case, variant, x, W, b):
    """interleaved: W with the columns of its halves alternating."""
    return (interleave(W, case),) if variant == "interleaved" else ()


def build(case, variant, device, chosen):
    """call(x (M, K), W, b (2N,), *prepared) → (M, N), jitted."""
    (launch,) = launches(case, variant, device, chosen)
    M, N = case.size("M", "N")

    def call(x, W, b, prepared=None):
        return run(launch, x, W if prepared is None else prepared, b, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    return jax.jit(call)
