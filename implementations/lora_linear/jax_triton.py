"""lora_linear in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.jax.lora import differentiated
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
    *first, last = launches(case, variant, device, chosen)
    M, N, R = case.size("M", "N", "R")

    def fused(x, scale, W, b, A, B):
        return run(last, x, scale, W, b, A, B, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    def two_launches(x, scale, W, b, A, B):
        xa = run(first[0], x, A, M, out=jax.ShapeDtypeStruct((M, R), x.dtype))
        return run(last, xa, x, scale, W, b, B, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    return jax.jit(two_launches if first else fused)
