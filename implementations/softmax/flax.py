"""softmax in JAX; Flax's own softmax is this function.

- `default`: jax.nn.softmax on the storage dtype, which rounds each step to it, as most users write it; XLA multiplies by 1 / sum.
- `float32`: a 16-bit x widened first, so that only the result is rounded; XLA fuses both conversions.
"""

import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import differentiated

BACKEND = "jax"
VARIANTS = {"default": ("shifted", "exponentials", "total", "inverse"), "float32": ()}
BACKWARD = {
    "default": (
        "shifted",
        "exponentials",
        "total",
        "inverse",
        "probabilities",
        "weighted",
        "partial",
        "inner",
        "share",
    ),
    "float32": (),
}


def skip(case, variant, device):
    if variant == "float32" and case.dtype == "float32":
        return "x is float32 already: default is the same program"
    return None


def build(case, variant, device):
    """call(x (R, C)) → (R, C), jitted."""

    def wide(x):
        return jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype)

    softmax = jax.nn.softmax if variant == "default" else wide
    return jax.jit(softmax) if case.mode == "forward" else differentiated(softmax, (0,))
