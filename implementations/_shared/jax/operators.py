"""What the JAX implementations of several kernels share."""

import jax
import jax.numpy as jnp

ACTIVATIONS = {
    "none": lambda z: z,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "gelu_tanh": lambda z: jax.nn.gelu(z, approximate=True),
    "gelu_erf": lambda z: jax.nn.gelu(z, approximate=False),
    "silu": jax.nn.silu,
}


def dot_general(x, W, dimensions, precision=None, preferred_element_type=None):
    """jax.lax.dot_general, with a result of the dtype of x: what the Dense layers compute with.

    XLA makes a sum of products of a matrix with one vector and rounds its terms to 16 bits, unless the result is to be float32
    (seen with JAX 0.11 on a GPU): then that is asked for, and narrowed here.
    """
    vector = x.ndim == 2 and (x.shape[0] == 1 or 1 in W.shape)
    wide = jnp.float32 if vector else preferred_element_type
    return jax.lax.dot_general(x, W, dimensions, precision, wide).astype(x.dtype)


@jax.custom_vjp
def add_bias(z, b):
    """z (M, N) + b (N,). Its gradient by b is summed in float32: what JAX makes of a broadcast sums 16 bits in 16 bits."""
    return z + b


def _add_bias(z, b):
    return z + b, ()


def _bias_gradient(_, dz):
    return dz, dz.sum(axis=0, dtype=jnp.float32).astype(dz.dtype)


add_bias.defvjp(_add_bias, _bias_gradient)


def dense(case, x, W, b):
    """x (M, K) @ W as the case stores it + b (N,)."""
    return add_bias((transposed_product if case.options["w_layout"] == "nk" else product)(x, W), b)


def product(x, W):
    """x (M, K) @ W (K, N)."""
    return dot_general(x, W, (((1,), (0,)), ((), ())))


def transposed_product(x, W):
    """x (M, K) @ Wᵀ with W (N, K)."""
    return dot_general(x, W, (((1,), (1,)), ((), ())))
