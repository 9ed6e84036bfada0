"""padded_attention in JAX: the products in float32 at least, jax.nn.softmax with a mask, whose masked elements are 0.

- `default`: einsum, softmax in float32, the probabilities rounded to the storage dtype for the second product.
- `cudnn`: jax.nn.dot_product_attention on cuDNN's fused kernel, which wants (B, T, H, D) and the padding as a mask. Tokens of
  padding, and what comes out for them, are set to 0 around it.
"""

import math

import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import in_mode

BACKEND = "jax"
VARIANTS = {"default": ("probabilities",), "cudnn": ("probabilities",)}
BACKWARD = {"default": ("probabilities", "dprobabilities", "dscaled", "dscores")}


def skip(case, variant, device):
    if variant != "cudnn":
        return None
    if device.type != "cuda":
        return "cuDNN needs an NVIDIA GPU"
    if case.dtype == "float32":
        return "cuDNN's fused attention takes 16-bit floats alone"
    if case.sizes["D"] % 8 or case.sizes["D"] > 128:
        return "cuDNN's fused attention takes D that are multiples of 8 up to 128"
    return "cuDNN's fused attention takes an even number of tokens" if case.sizes["T"] % 2 else None


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D), jitted."""
    T, D = case.size("T", "D")
    scale = 1 / math.sqrt(D)

    def masks(n_padd):
        """Which tokens are none of padding (B, 1, T, 1), and what is visible (B, 1, T, T)."""
        tokens = jnp.arange(T, dtype=jnp.int32)
        kept = n_padd[:, None, None, None] <= tokens
        return kept.mT, kept & (tokens <= tokens[:, None])

    def default(q, k, v, n_padd):
        kept, visible = masks(n_padd)
        scores = jnp.einsum("bhid,bhjd->bhij", q, k, preferred_element_type=jnp.float32)
        probabilities = jax.nn.softmax(scores * scale, where=visible).astype(q.dtype)
        return jnp.einsum("bhij,bhjd->bhid", probabilities, jnp.where(kept, v, 0), preferred_element_type=jnp.float32)

    def cudnn(q, k, v, n_padd):
        kept, visible = masks(n_padd)
        q, k, v = (jnp.where(kept, x, 0).swapaxes(1, 2) for x in (q, k, v))
        y = jax.nn.dot_product_attention(q, k, v, mask=visible, scale=scale, implementation="cudnn")
        return jnp.where(kept, y.swapaxes(1, 2), 0)

    function = default if variant == "default" else cudnn

    def call(q, k, v, n_padd):
        if case.mode != "forward":  # 0 × NaN of padding would reach the gradients
            q, k = (jnp.where(masks(n_padd)[0], x, 0) for x in (q, k))
        return function(q, k, v, n_padd).astype(q.dtype)

    return in_mode(case, call, (0, 1, 2))
