"""add_relu in JAX through jax-triton: triton.py's kernel. `in_place` donates x, and the kernel writes y where x was."""

import jax

from implementations._shared.jax.launch import run
from implementations.add_relu._triton_kernels import TUNABLES, config, fits, launches  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": (), "in_place": ()}
IN_PLACE = {"in_place": ("x",)}


def build(case, variant, device, chosen):
    """call(x (M, N), b (N,)) → (M, N)."""
    (launch,) = launches(case, variant, device, chosen)
    in_place = variant == "in_place"

    def call(x, b):
        return run(
            launch, x, b, x.size, out=jax.ShapeDtypeStruct(x.shape, x.dtype), aliases={0: 0} if in_place else None
        )

    return jax.jit(call, donate_argnums=0 if in_place else ())
