"""add_mul_act in JAX: a jitted function, which XLA fuses to one kernel. Flax has no layer for it.

It computes in float32 and rounds at the end, which costs nothing where memory is the limit: in 16 bits XLA would round, or
not, as it pleases, and a GELU of jax.nn would lose most of its digits below 0. `in_place` donates x: XLA writes y where x
was, and x is gone.
"""

import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import differentiated
from implementations._shared.jax.operators import ACTIVATIONS

BACKEND = "jax"
VARIANTS = {"default": (), "in_place": ()}
BACKWARD = {"default": ()}
IN_PLACE = {"in_place": ("x",)}


def build(case, variant, device):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N)."""
    activate = ACTIVATIONS[case.options["activation"]]

    def add_mul_act(x, z, multiplier, b):
        wide_x, wide_z, wide_multiplier, wide_b = (v.astype(jnp.float32) for v in (x, z, multiplier, b))
        return activate(wide_x + wide_multiplier * wide_z + wide_b).astype(x.dtype)

    if case.mode != "forward":
        return differentiated(add_mul_act, (0, 1, 3))
    return jax.jit(add_mul_act, donate_argnums=0 if variant == "in_place" else ())
