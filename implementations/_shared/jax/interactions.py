"""DLRM's feature interaction in JAX: dense (M, D), sparse (M, F, D) → (M, D + F (F + 1) / 2) or (M, ((F + 1) D)²)."""

import jax.numpy as jnp
import numpy as np


def dot(dense, sparse):
    i, j = np.tril_indices(sparse.shape[1] + 1, -1)
    stack = jnp.concatenate([dense[:, None], sparse], axis=1)
    products = jnp.einsum("mid,mjd->mij", stack, stack)
    return jnp.concatenate([dense, products[:, i, j]], axis=1)


def outer(dense, sparse):
    x = jnp.concatenate([dense, sparse.reshape(len(dense), -1)], axis=1)
    return (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)


def trained_outer(dense, sparse):
    """The same, with gradients that are summed in float32: what JAX makes of a broadcast sums 16 bits in 16 bits."""
    return outer(dense.astype(jnp.float32), sparse.astype(jnp.float32)).astype(dense.dtype)


FORMS = {"dot": dot, "outer": outer}
TRAINED_FORMS = {"dot": dot, "outer": trained_outer}
