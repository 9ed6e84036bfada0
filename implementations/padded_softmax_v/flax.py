"""padded_softmax_v in JAX: jax.nn.softmax with a mask, whose masked elements are 0, in float32; then a product with the
probabilities rounded to the storage dtype. Rows of v that are padding become 0 first: 0 × NaN would be NaN."""

import jax
import jax.numpy as jnp

BACKEND = "jax"
VARIANTS = {"default": ("probabilities",)}


def build(case, variant, device):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D), jitted."""

    def call(att, v, n_padd):
        tokens = jnp.arange(att.shape[0], dtype=jnp.int32)
        kept = n_padd <= tokens
        visible = kept & (tokens <= tokens[:, None])
        probabilities = jax.nn.softmax(att.astype(jnp.float32), where=visible).astype(att.dtype)
        y = jnp.dot(probabilities, jnp.where(kept[:, None], v, 0), preferred_element_type=jnp.float32)
        return y.astype(v.dtype)

    return jax.jit(call)
