"""lora_mlp in JAX through jax-triton: triton.py's kernels."""

import jax

from implementations._shared.jax import lora
from implementations.lora_mlp._layers import by_launches, by_layer, differentiated, layers
from implementations.lora_mlp._triton_kernels import TUNABLES, config, fits, launches, own_config, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("scaled_xa", "hidden"), "two_launches": ("xa", "scaled_xa", "hidden")}
BACKWARD = {"default": ("xa", "scaled_xa", "sum", "hidden", "dz", "dxa", "dhidden")}


def build(case, variant, device, chosen):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …) → (M, N of the last layer), jitted."""
    if case.mode != "forward":
        return tuple(
            map(
                jax.jit,
                differentiated(
                    case, [lora.differentiated(layer, device, own_config(layer, device)) for layer in layers(case)]
                ),
            )
        )
    described = by_launches(variant, launches(case, variant, device, chosen))
    runs = [lora.layer(layer, *own) for layer, own in zip(layers(case), described, strict=True)]

    def call(x, scale, *arrays):
        for run, own in zip(runs, by_layer(arrays), strict=True):
            x = run(x, scale, *own)
        return x

    return jax.jit(call)
