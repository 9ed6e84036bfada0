"""padded_attention in JAX through jax-triton: triton.py's kernels and variants."""

import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations.padded_attention import _triton_backward as backward
from implementations.padded_attention._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",), "one_launch": ("probabilities",)}
BACKWARD = {
    "flash": ("probabilities", "dscaled", "output"),
    "one_launch": ("probabilities", "dscaled", "output"),
}


def build(case, variant, device, chosen):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D), jitted."""
    if case.mode != "forward":
        return _differentiated(case, variant, device, chosen)
    (launch,) = launches(case, variant, device, chosen)

    def call(q, k, v, n_padd):
        return run(launch, q, k, v, n_padd, out=jax.ShapeDtypeStruct(q.shape, q.dtype))

    return jax.jit(call)


def _differentiated(case, variant, device, chosen):
    """(forward, backward), both jitted; y and the logarithms of the rows' sums are kept beside the inputs."""
    first = backward.forward_launch(case, device)
    last, *others = backward.backward_launches(case, variant, chosen)
    statistics = jax.ShapeDtypeStruct(case.size("B", "H", "T"), jnp.float32)

    def forward(q, k, v, n_padd):
        y, lse = run(first, q, k, v, n_padd, out=[jax.ShapeDtypeStruct(q.shape, q.dtype), statistics])
        return y, (q, k, v, n_padd, y, lse)

    def gradients(residuals, dy):
        q, k, v, n_padd, _, lse = residuals
        like = jax.ShapeDtypeStruct(q.shape, q.dtype)
        if not others:
            return tuple(run(last, *residuals, dy, out=[like] * 3))
        dq, delta = run(last, *residuals, dy, out=[like, statistics])
        return dq, *run(others[0], q, k, v, n_padd, lse, dy, delta, out=[like] * 2)

    return jitted(forward, gradients)
