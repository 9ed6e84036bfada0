"""fused_mlp in JAX through jax-triton: triton.py's kernels."""

import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations._shared.recompute import recomputing
from implementations.fused_mlp import _triton_backward as backward
from implementations.fused_mlp._triton_kernels import TUNABLES, alone, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("hidden",), "recompute": ("hidden",)}
BACKWARD = {"default": ("hidden", "value", "dz"), "recompute": ("hidden", "value", "dz")}


def build(case, variant, device, chosen):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer), jitted."""
    if case.mode != "forward":
        return _differentiated(case, variant, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    M, layers = case.size("M", "LAYERS")

    def call(x, *weights):
        return run(launch, x, *weights, M, out=jax.ShapeDtypeStruct((M, case.sizes[f"N{layers}"]), x.dtype))

    return jax.jit(call)


def _differentiated(case, variant, device, chosen):
    """(forward, backward) of a launch for each layer and some more (_triton_backward.py), both jitted."""
    forwards = backward.forward_launches(case, device)
    last, layers = backward.backward_launches(case, chosen)
    M, widths = case.sizes["M"], backward.widths(case)

    def forward(x, *weights):
        values = [x]
        for launch, (_, N), W, b in zip(forwards, widths, weights[::2], weights[1::2], strict=True):
            values.append(run(launch, values[-1], W, b, M, out=jax.ShapeDtypeStruct((M, N), x.dtype)))
        return values[-1], (*values, *weights[::2])

    def gradient(residuals, dy):
        values, Ws = residuals[: len(widths) + 1], residuals[len(widths) + 1 :]
        dz, gradients = dy, []
        if last:
            dz = run(last, values[-1], dy, dy.size, out=jax.ShapeDtypeStruct(dy.shape, dy.dtype))
        for (launch, parts), x, W, number in zip(
            layers, values[-2::-1], Ws[::-1], range(len(widths), 0, -1), strict=True
        ):
            N = dz.shape[1]
            dx, *made = (jax.ShapeDtypeStruct(shape, dz.dtype) for shape in (x.shape, W.shape, (N,)))
            if parts:
                shape = chosen[f"layer{number}_SPLIT"], W.size + N
                dx, sums = run(launch, dz, W, x, M, out=[dx, jax.ShapeDtypeStruct(shape, jnp.float32)])
                made = run(parts, sums, out=made)
            else:
                dx, *made = run(launch, dz, W, x, M, out=[dx, *made])
            dz, gradients = dx, [*made, *gradients]
        return dz, *gradients

    if variant == "recompute":
        whole = alone(case, device)

        def unkept(x, *weights):
            return run(whole, x, *weights, M, out=jax.ShapeDtypeStruct((M, widths[-1][1]), x.dtype))

        forward, gradient = recomputing(unkept, forward, gradient)
    return jitted(forward, gradient)
