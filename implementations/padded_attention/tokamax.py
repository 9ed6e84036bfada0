"""padded_attention by Tokamax's attention, which takes (B, T, H, D): the transpositions belong to the call.

mosaic   its Hopper and Blackwell kernel: copies by one warpgroup, products by others
triton   its Pallas kernel
xla      its plain JAX form, with the scores in memory

Padding is a mask (B, 1, 1, T) beside the causal rule, which the kernels know. A mask hides no NaN: tokens of padding are set to
0 before, and what comes out for them after. Gradients are those of its plain form, by XLA. Written against version 0.0.17; what a kernel does not support it refuses by an
exception, which the record shows.
"""

import jax
import jax.numpy as jnp
import tokamax
from absl import flags

from implementations._shared.jax.autograd import in_mode

BACKEND = "jax"
REQUIRES = {"tokamax": "tokamax"}
WITHOUT_GPU = "unavailable"
VARIANTS = {
    "mosaic": ("probabilities",),
    "triton": ("query", "probabilities"),
    "xla": ("scores", "scaled", "probabilities"),
}
BACKWARD = {"xla": ("scores", "scaled", "probabilities", "dprobabilities", "dscaled", "dscores")}


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    T, D = case.size("T", "D")
    if variant == "mosaic":
        if case.dtype == "float32":
            return "Tokamax's Mosaic kernel multiplies 16-bit floats"
        if device.capability < (9, 0):
            return "Tokamax's Mosaic kernel needs compute capability 9.0"
        if T % 128 or D % 64:
            return "Tokamax's Mosaic kernel wants sizes that its tiles divide: T by 128, D by 64"
    return None


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D), jitted."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["fusebench"], known_only=True)  # Tokamax reads its settings from absl's flags
    tokens = jnp.arange(case.sizes["T"], dtype=jnp.int32)
    precision = None
    if case.dtype == "float32":
        preset = jax.lax.DotAlgorithmPreset
        precision = preset.TF32_TF32_F32 if case.precision == "tf32" else preset.F32_F32_F32

    def call(q, k, v, n_padd):
        kept = n_padd[:, None, None, None] <= tokens  # (B, 1, 1, T)
        q, k, v = (jnp.where(kept.mT, x, 0).swapaxes(1, 2) for x in (q, k, v))
        with jax.enable_x64(False):  # the harness has it on; Tokamax's index arithmetic mixes widths then
            y = tokamax.dot_product_attention(
                q, k, v, mask=kept, is_causal=True, precision=precision, implementation=variant
            )  # fmt: skip
        return jnp.where(kept.mT, y.swapaxes(1, 2), 0).astype(q.dtype)

    return in_mode(case, call, (0, 1, 2))
