"""lora_linear in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.lora_linear._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}


def build(case, variant, device):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N), jitted."""
    *first, last = launches(case, variant, device)
    M, N, R = case.size("M", "N", "R")

    def run(launch, width, *arguments):
        return triton_call(
            *arguments,
            M,
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct((M, width), arguments[0].dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    def fused(x, scale, W, b, A, B):
        return run(last, N, x, scale, W, b, A, B)

    def two_launches(x, scale, W, b, A, B):
        return run(last, N, run(first[0], R, x, A), x, scale, W, b, B)

    return jax.jit(two_launches if first else fused)
