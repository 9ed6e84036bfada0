"""interaction in JAX, jitted. Flax has no layer for it; DLRMs written in Flax call such a function between their modules."""

import jax.numpy as jnp
import numpy as np

from implementations._shared.jax.autograd import in_mode
from implementations.interaction._limits import skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
VARIANTS = {"default": ()}
BACKWARD = {"default": ("left", "right", "stack")}


def build(case, variant, device):
    """call(dense (M, D), sparse (M, F, D)) → (M, D + F (F + 1) / 2) or (M, ((F + 1) D)²)."""
    i, j = np.tril_indices(case.sizes["F"] + 1, -1)

    def dot(dense, sparse):
        stack = jnp.concatenate([dense[:, None], sparse], axis=1)
        products = jnp.einsum("mid,mjd->mij", stack, stack)
        return jnp.concatenate([dense, products[:, i, j]], axis=1)

    def outer(dense, sparse):
        x = jnp.concatenate([dense, sparse.reshape(len(dense), -1)], axis=1)
        if case.mode != "forward":  # summed in float32: what JAX makes of a broadcast sums 16 bits in 16 bits
            x = x.astype(jnp.float32)
        return (x[:, :, None] * x[:, None, :]).reshape(len(x), -1).astype(dense.dtype)

    return in_mode(case, dot if case.options["form"] == "dot" else outer, (0, 1))
