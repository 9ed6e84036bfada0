"""softmax in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations.softmax._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"row": (), "persistent": (), "online": ()}


def build(case, variant, device):
    """call(x (R, C)) → (R, C), jitted."""
    (launch,) = launches(case, variant, device)

    def call(x):
        return run(launch, x, case.sizes["R"], out=jax.ShapeDtypeStruct(x.shape, x.dtype))

    return jax.jit(call)
