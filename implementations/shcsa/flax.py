"""shcsa in Flax: a linen module of one Dense and a softmax with a mask, whose masked elements are 0.

Products and softmax of the attention are in float32 at least; the probabilities are rounded to the storage dtype for the
second product. Rows of v that are padding become 0 first: 0 × NaN would be NaN.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from implementations._shared.jax.operators import dot_general

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {"unfused": ("product", "bias", "probabilities")}


class Attention(nn.Module):
    """Single-head causal self-attention with `features` columns of q, k and v."""

    features: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x, n_padd):
        q, k, v = jnp.split(nn.Dense(3 * self.features, dtype=self.dtype, dot_general=dot_general)(x), 3, axis=1)
        tokens = jnp.arange(x.shape[0], dtype=jnp.int32)
        kept = n_padd <= tokens
        scores = jnp.dot(q, k.T, preferred_element_type=jnp.float32) * (1 / math.sqrt(self.features))
        probabilities = jax.nn.softmax(scores, where=kept & (tokens <= tokens[:, None])).astype(self.dtype)
        v = jnp.where(kept[:, None], v, 0)
        return jnp.dot(probabilities, v, preferred_element_type=jnp.float32).astype(self.dtype)


def prepare(case, variant, x, n_padd, W, b):
    """W as Dense keeps it, (C, 3 D)."""
    return (jnp.array(W if case.options["w_layout"] == "kn" else W.T),)


def build(case, variant, device):
    """call(x (T, C), n_padd () int32, W, b (3 D,), W as (C, 3 D)) → (T, D), jitted."""
    module = Attention(case.sizes["D"], jnp.dtype(case.dtype))

    def apply(x, n_padd, _, b, W):
        return module.apply({"params": {"Dense_0": {"kernel": W, "bias": b}}}, x, n_padd)

    return jax.jit(apply)
