"""softmax in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations.softmax._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"row": (), "persistent": (), "online": ()}


def build(case, variant, device, chosen):
    """call(x (R, C)) → (R, C), jitted."""
    (launch,) = launches(case, variant, device, chosen)

    def call(x):
        return run(launch, x, case.sizes["R"], out=jax.ShapeDtypeStruct(x.shape, x.dtype))

    return jax.jit(call)
