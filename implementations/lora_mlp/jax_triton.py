"""lora_mlp in JAX through jax-triton: triton.py's kernels."""

import jax

from implementations._shared.jax import lora
from implementations._shared.jax.launch import run
from implementations.lora_mlp._layers import by_layer, differentiated, layers, widths
from implementations.lora_mlp._triton_kernels import TUNABLES, config, fits, launches, own_config, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("scaled_xa", "hidden")}
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
    M, columns = case.sizes["M"], widths(case)[1:]
    described = launches(case, variant, device, chosen)

    def call(x, scale, *arrays):
        for launch, N, own in zip(described, columns, by_layer(arrays), strict=True):
            x = run(launch, x, scale, *own, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))
        return x

    return jax.jit(call)
