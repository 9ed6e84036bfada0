"""fused_mlp in JAX through jax-triton: triton.py's kernels."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.triton.perceptron import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("hidden",)}


def build(case, variant, device, chosen):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer), jitted."""
    (launch,) = launches(case, variant, device, chosen)
    M, layers = case.size("M", "LAYERS")

    def call(x, *weights):
        return run(launch, x, *weights, M, out=jax.ShapeDtypeStruct((M, case.sizes[f"N{layers}"]), x.dtype))

    return jax.jit(call)
