"""add_mul_act in JAX through jax-triton: triton.py's kernel. `in_place` donates x, and the kernel writes y where x was."""

import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations._shared.triton import elementwise
from implementations.add_mul_act import _triton_backward as backward
from implementations.add_mul_act._rows import slope_is_from_y
from implementations.add_mul_act._triton_kernels import INPUTS, TUNABLES, config, fits, forward_launch, launches  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": (), "in_place": ()}
BACKWARD = {"default": ("bias", "value")}  # relu sees the sign of y, which is that of the stored sum
IN_PLACE = {"in_place": ("x",)}


def build(case, variant, device, chosen):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N)."""
    if case.mode != "forward":
        return _differentiated(case, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    in_place = variant == "in_place"
    return jax.jit(_call(launch, {0: 0} if in_place else None), donate_argnums=0 if in_place else ())


def _call(launch, aliases=None):
    def call(x, z, multiplier, b):
        return run(
            launch, x, z, multiplier, b, x.size, out=jax.ShapeDtypeStruct(x.shape, x.dtype), aliases=aliases
        )  # fmt: skip

    return call


def _differentiated(case, device, chosen):
    """(forward, backward) of two launches, or three (_triton_backward.py), both jitted."""
    call = _call(forward_launch(case, elementwise.config(case, device, INPUTS)))
    first, *more = backward.launches(case, chosen)
    parts, from_y, (M, N) = backward.parts(case, chosen), slope_is_from_y(case), case.size("M", "N")

    def forward(x, z, multiplier, b):
        y = call(x, z, multiplier, b)
        return y, (y, y, multiplier, b) if from_y else (x, z, multiplier, b)

    def gradient(residuals, dy):
        whole, columns = jax.ShapeDtypeStruct((M, N), dy.dtype), jax.ShapeDtypeStruct((N,), dy.dtype)
        sums = jax.ShapeDtypeStruct((parts, N), jnp.float32) if more else columns
        dx, dz, db = run(first, *residuals, dy, M, out=[whole, whole, sums])
        return dx, dz, run(more[0], db, out=columns) if more else db

    return jitted(forward, gradient)
