"""geglu without its bias by Tokamax's gated linear unit, which has none: compare it with a yardstick, not with a geglu.

mosaic   its persistent Hopper and Blackwell kernel: copies by one warpgroup, products by two others
xla      its plain JAX form

Tokamax takes the weights as (K, 2, N) and activates what the first half gives, so the halves change places in `prepare`.
Written against version 0.0.17; what a kernel does not support it refuses by an exception, which the record shows.
"""

import jax
import jax.numpy as jnp
import tokamax
from absl import flags

BACKEND = "jax"
REQUIRES = {"tokamax": "tokamax"}
WITHOUT_GPU = "unavailable"
VARIANTS = {"mosaic": ("product",), "xla": ("product", "gate")}
COMPUTES = "without_bias"  # of kernel.py's PARTS


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if variant == "mosaic":
        if case.options["activation"] != "gelu_tanh":
            return "Tokamax's Mosaic kernel has the tanh form of GELU alone: option.activation=gelu_tanh runs it"
        if case.dtype == "float32":
            return "Tokamax's Mosaic kernel multiplies 16-bit floats"
        if device.capability < (9, 0):
            return "Tokamax's Mosaic kernel needs compute capability 9.0"
        if any(size % 128 for size in case.size("M", "K", "N")):
            return "Tokamax's Mosaic kernel wants sizes that its tiles divide"
    elif case.sizes["M"] == 1 and case.dtype != "float32":
        return "XLA rounds the terms of a product with one row to 16 bits, and Tokamax asks for no other type"
    return None


def gelu_tanh(z):
    """Tokamax keeps a log of its arguments by their names, so that the activation is a function of a module."""
    return jax.nn.gelu(z, approximate=True)


def gelu_erf(z):
    return jax.nn.gelu(z, approximate=False)


def prepare(case, variant, x, W, b):
    """(W as (K, 2, N), its right half first,)."""
    K, N = case.size("K", "N")
    W = W if case.options["w_layout"] == "kn" else W.T
    return (jnp.flip(W.reshape(K, 2, N), axis=1),)


def build(case, variant, device):
    """call(x (M, K), W, b (2N,), *prepared) → (M, N), jitted."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["fusebench"], known_only=True)  # Tokamax reads its settings from absl's flags
    gelu = gelu_tanh if case.options["activation"] == "gelu_tanh" else gelu_erf
    precision = None
    if case.dtype == "float32":
        preset = jax.lax.DotAlgorithmPreset
        precision = preset.TF32_TF32_F32 if case.precision == "tf32" else preset.F32_F32_F32

    def call(x, W, b, swapped):
        with jax.enable_x64(False):  # the harness has it on; Tokamax's index arithmetic mixes widths then
            return tokamax.gated_linear_unit(
                x, swapped, activation=gelu, precision=precision, implementation=variant
            )  # fmt: skip

    return jax.jit(call)
