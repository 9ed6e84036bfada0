"""padded_softmax_v in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.triton.weighted_values import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}


def build(case, variant, device, chosen):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D), jitted."""
    (launch,) = launches(case, variant, device, chosen)

    def call(att, v, n_padd):
        return run(launch, att, v, n_padd, out=jax.ShapeDtypeStruct(v.shape, v.dtype))

    return jax.jit(call)
