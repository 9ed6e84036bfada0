"""A multilayer perceptron in Flax."""

import flax.linen as nn
import jax.numpy as jnp

from implementations._shared.jax.operators import ACTIVATIONS, dot_general


class Perceptron(nn.Module):
    """Dense layers of the given widths, ReLU between them, `last` after the last."""

    widths: tuple[int, ...]
    last: str
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths):
            x = nn.Dense(width, dtype=self.dtype, dot_general=dot_general)(x)
            x = ACTIVATIONS[self.last](x) if i + 1 == len(self.widths) else nn.relu(x)
        return x


def parameters(Ws, biases):
    """Its parameters, of layers' kernels (K, N) and biases (N,)."""
    return {f"Dense_{i}": {"kernel": W, "bias": b} for i, (W, b) in enumerate(zip(Ws, biases, strict=True))}
