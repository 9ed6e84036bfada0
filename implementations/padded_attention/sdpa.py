"""padded_attention through torch.nn.functional.scaled_dot_product_attention, one of its kernels each: flash, efficient, cudnn,
math.

Padding on the left of a causal sequence is told to all of them as a mask (B, 1, T, T), which is made in the call, because
n_padd may change; its causal half is made once. A mask hides no NaN: k and v are set to 0 where they are padding, and rows that
see nothing, which some of these kernels leave undefined, in the output. In the backward modes q is 0 there as well, and such a row sees
itself, so that nothing undefined meets its gradient.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from implementations._shared.torch.autograd import in_mode

BACKEND = "torch"
VARIANTS = {
    "flash": ("probabilities",),
    "efficient": ("probabilities",),
    "cudnn": ("probabilities",),
    "math": ("scores", "scaled", "probabilities"),
}
BACKWARD = {
    "efficient": ("probabilities", "dscaled", "output"),
    "cudnn": ("probabilities", "dscaled", "output"),
    "math": ("scores", "scaled", "probabilities", "dprobabilities", "dscaled", "dscores"),
}
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def skip(case, variant, device):
    T, D = case.size("T", "D")
    if variant == "flash" and device.type == "cuda":
        return "Torch's flash attention takes no mask on a GPU, so that it cannot be told of padding"
    if variant in ("efficient", "cudnn") and device.type == "cpu":
        return "needs an NVIDIA GPU"
    if variant == "efficient" and D * case.itemsize % 16:
        return "Torch's efficient attention takes rows that are multiples of 16 bytes"
    if variant == "efficient" and case.dtype == "float32":
        return "Torch's efficient attention multiplies float32 as three TF32 products, which is neither ieee nor tf32"
    if variant == "cudnn" and case.dtype == "float32":
        return "cuDNN's attention takes 16-bit floats alone"
    if variant == "cudnn" and (D % 8 or D > 128 or T == 1):
        return "cuDNN's attention takes more than one token, and D that are multiples of 8 up to 128"
    return None


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    kernel = KERNELS[variant]
    tokens = torch.arange(case.sizes["T"], device=device.type)
    causal, itself = tokens <= tokens[:, None], tokens == tokens[:, None]

    def call(q, k, v, n_padd):
        padding = tokens < n_padd[:, None, None, None]
        k, v = k.masked_fill(padding.mT, 0), v.masked_fill(padding.mT, 0)
        visible = causal & ~padding
        if case.mode != "forward":
            q, visible = q.masked_fill(padding.mT, 0), visible | itself
        with sdpa_kernel(kernel):
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return y.masked_fill(padding.mT, 0)

    return in_mode(case, call, (0, 1, 2))
