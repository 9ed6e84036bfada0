"""geglu in Flax: a linen module of one Dense, whose output is split in halves.

XLA takes a transposed kernel into the product, so both layouts of W are read as they are stored.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import differentiated
from implementations._shared.jax.operators import ACTIVATIONS, dense, dot_general

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {"default": ("product", "bias", "activation", "gate")}
BACKWARD = {"default": ("product", "bias", "dz")}


class Geglu(nn.Module):
    """x (M, K) → (M, features): the first half of a Dense layer's outputs times the GELU of the second."""

    features: int
    activation: str
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        z1, z2 = jnp.split(nn.Dense(2 * self.features, dtype=self.dtype, dot_general=dot_general)(x), 2, axis=1)
        return z1 * ACTIVATIONS[self.activation](z2)


def build(case, variant, device):
    """call(x (M, K), W, b (2N,)) → (M, N), jitted."""
    module = Geglu(case.sizes["N"], case.options["activation"], jnp.dtype(case.dtype))
    transposed = case.options["w_layout"] == "nk"

    def call(x, W, b):
        return module.apply({"params": {"Dense_0": {"kernel": W.T if transposed else W, "bias": b}}}, x)

    def trained(x, W, b):
        """The same with a gate in float32, whose gradient XLA otherwise takes step by step in 16 bits."""
        z1, z2 = (z.astype(jnp.float32) for z in jnp.split(dense(case, x, W, b), 2, axis=1))
        return (z1 * ACTIVATIONS[case.options["activation"]](z2)).astype(x.dtype)

    return jax.jit(call) if case.mode == "forward" else differentiated(trained, (0, 1, 2))
