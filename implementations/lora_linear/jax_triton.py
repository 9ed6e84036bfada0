"""lora_linear in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.lora import differentiated, layer
from implementations.lora_linear._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
BACKWARD = {"two_launches": ("xa", "scaled_xa", "sum", "dz", "dxa")}


def build(case, variant, device, chosen):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N), jitted."""
    if case.mode != "forward":
        return tuple(map(jax.jit, differentiated(case, device, chosen)))
    return jax.jit(layer(case, *launches(case, variant, device, chosen)))
