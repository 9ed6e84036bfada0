"""lola in JAX through jax-triton: triton.py's kernels and variants."""

import jax
import jax.numpy as jnp

from implementations._shared.jax.launch import run
from implementations.lola._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"row": (), "batched_row": (), "multirow": ("one_pass",), "multirow_ws": ("one_pass",)}


def prepare(case, variant, x, W, b):
    """multirow_ws: the column sums of W in float32."""
    return (W.sum(0 if case.options["w_layout"] == "kn" else 1, dtype=jnp.float32),) if variant == "multirow_ws" else ()


def build(case, variant, device, chosen):
    (launch,) = launches(case, variant, device, chosen)
    M, N = case.size("M", "N")

    def call(x, W, b, *colsum):
        return run(launch, x, W, b, *colsum, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    return jax.jit(call)
