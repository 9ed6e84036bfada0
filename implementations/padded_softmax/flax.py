"""padded_softmax in JAX: jax.nn.softmax with a mask; its masked elements are 0, also in rows that see nothing.

- `default`: on the storage dtype, which rounds each step to it, as most users write it; XLA multiplies by 1 / sum.
- `float32`: 16-bit scores widened first, so that only the result is rounded; XLA fuses both conversions.
"""

import jax
import jax.numpy as jnp

BACKEND = "jax"
VARIANTS = {"default": ("shifted", "exponentials", "total", "inverse"), "float32": ()}


def skip(case, variant, device):
    if variant == "float32" and case.dtype == "float32":
        return "the scores are float32 already: default is the same program"
    return None


def build(case, variant, device):
    """call(att (T, T), n_padd () int32) → (T, T), jitted."""

    def call(att, n_padd):
        tokens = jnp.arange(att.shape[0], dtype=jnp.int32)
        visible = (n_padd <= tokens) & (tokens <= tokens[:, None])
        scores = att if variant == "default" else att.astype(jnp.float32)
        return jax.nn.softmax(scores, where=visible).astype(att.dtype)

    return jax.jit(call)
