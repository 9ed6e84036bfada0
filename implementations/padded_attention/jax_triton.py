"""padded_attention in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.triton.attention import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}


def build(case, variant, device, chosen):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D), jitted."""
    (launch,) = launches(case, variant, device, chosen)

    def call(q, k, v, n_padd):
        return run(launch, q, k, v, n_padd, out=jax.ShapeDtypeStruct(q.shape, q.dtype))

    return jax.jit(call)
