"""launch in JAX through jax-triton: triton.py's kernel."""

import jax

from implementations._shared.jax.launch import run
from implementations.launch._triton_kernels import TUNABLES, config, fits, launches  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ()}


def build(case, variant, device, chosen):
    (launch,) = launches(case, variant, device, chosen)

    def call(x):
        return run(launch, x, case.sizes["N"], out=jax.ShapeDtypeStruct(x.shape, x.dtype))

    return jax.jit(call)
