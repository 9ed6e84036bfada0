"""lola in JAX through jax-triton: triton.py's kernels and variants."""

import jax
import jax.numpy as jnp

from implementations._shared.jax.launch import run
from implementations.lola._triton_kernels import config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"row": (), "batched_row": (), "multirow": ("one_pass",), "multirow_ws": ("one_pass",)}
TUNABLES = {
    "row": {"UNROLL": (1, 2, 4, 8), "BLOCK_K": (16, 32, 64, 128), "BLOCK_N": (8, 16, 32, 64), "num_warps": (2, 4, 8)},
    "batched_row": {"UNROLL": (1, 2, 4, 8), "BLOCK_K": (16, 32, 64, 128), "BLOCK_N": (8, 16, 32, 64), "num_warps": (2, 4, 8)},
    "multirow": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (16, 32, 64), "GROUP": (4, 8, 16),
        "num_warps": (4, 8), "num_stages": (2, 3, 4),
    },
    "multirow_ws": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (16, 32, 64), "GROUP": (4, 8, 16),
        "num_warps": (4, 8), "num_stages": (2, 3, 4),
    },
}  # fmt: skip


def prepare(case, variant, x, W, b):
    """multirow_ws: the column sums of W in float32."""
    return (W.sum(0 if case.options["w_layout"] == "kn" else 1, dtype=jnp.float32),) if variant == "multirow_ws" else ()


def build(case, variant, device, chosen):
    (launch,) = launches(case, variant, device, chosen)
    M, N = case.size("M", "N")

    def call(x, W, b, *colsum):
        return run(launch, x, W, b, *colsum, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    return jax.jit(call)
