"""launch in JAX through jax-triton: triton.py's kernel."""

import jax

from implementations._shared.jax.launch import run
from implementations.launch._triton_kernels import launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"default": ()}


def build(case, variant, device):
    (launch,) = launches(case, variant, device)

    def call(x):
        return run(launch, x, case.sizes["N"], out=jax.ShapeDtypeStruct(x.shape, x.dtype))

    return jax.jit(call)
