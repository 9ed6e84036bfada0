"""softmax in JAX; Flax's own softmax is this function.

- `default`: jax.nn.softmax on the storage dtype, which rounds each step to it, as most users write it; XLA multiplies by 1 / sum.
- `float32`: a 16-bit x widened first, so that only the result is rounded; XLA fuses both conversions.
"""

import jax
import jax.numpy as jnp

BACKEND = "jax"
VARIANTS = {"default": ("shifted", "exponentials", "total", "inverse"), "float32": ()}


def skip(case, variant, device):
    if variant == "float32" and case.dtype == "float32":
        return "x is float32 already: default is the same program"
    return None


def build(case, variant, device):
    """call(x (R, C)) → (R, C), jitted."""
    if variant == "default":
        return jax.jit(jax.nn.softmax)
    return jax.jit(lambda x: jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype))
