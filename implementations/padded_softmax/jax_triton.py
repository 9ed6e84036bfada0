"""padded_softmax in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.triton.padded_softmax import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"row": (), "online": ()}


def build(case, variant, device, chosen):
    """call(att (T, T), n_padd () int32) → (T, T), jitted."""
    (launch,) = launches(case, variant, device, chosen)

    def call(att, n_padd):
        return run(launch, att, n_padd, out=jax.ShapeDtypeStruct(att.shape, att.dtype))

    return jax.jit(call)
