"""interaction in JAX through jax-triton: triton.py's kernels."""

import jax

from implementations._shared.jax.launch import run
from implementations.interaction._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ()}


def build(case, variant, device, chosen):
    (launch,) = launches(case, variant, device, chosen)
    M, F, D = case.size("M", "F", "D")
    width = D + F * (F + 1) // 2 if case.options["form"] == "dot" else ((F + 1) * D) ** 2

    def call(dense, sparse):
        return run(launch, dense, sparse, out=jax.ShapeDtypeStruct((M, width), dense.dtype))

    return jax.jit(call)
