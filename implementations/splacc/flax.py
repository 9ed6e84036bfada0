"""splacc in Flax: a linen module of one Dense without bias, whose output is split in halves.

XLA takes a transposed kernel into the product, so both layouts of B are read as they are stored.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import in_mode
from implementations._shared.jax.operators import dot_general

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {"default": ("product", "activation", "sigmoid", "tanh")}
BACKWARD = {"default": ("product", "activation", "sigmoid", "tanh", "slope", "weighted", "dz")}


class Splacc(nn.Module):
    """x (M, K) → (M, features): sigmoid of the first half of a Dense layer's outputs times tanh of the second."""

    features: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        left, right = jnp.split(
            nn.Dense(2 * self.features, use_bias=False, dtype=self.dtype, dot_general=dot_general)(x), 2, axis=1
        )
        return jax.nn.sigmoid(left) * jnp.tanh(right)


def build(case, variant, device):
    """call(A (M, K), B) → (M, N), jitted."""
    module = Splacc(case.sizes["N"], jnp.dtype(case.dtype))
    transposed = case.options["w_layout"] == "nk"

    def call(A, B):
        return module.apply({"params": {"Dense_0": {"kernel": B.T if transposed else B}}}, A)

    return in_mode(case, call, (0, 1))
