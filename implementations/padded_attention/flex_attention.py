"""padded_attention through torch.nn.attention.flex_attention: Inductor writes one Triton kernel for the mask that it is given.

The block mask is made in the call, because it holds n_padd, which may change; it is compiled together with the attention. A
mask hides no NaN in v: its padding is set to 0. Rows that see nothing are 0 by flex_attention's own rule.
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from implementations._compile import compiled

BACKEND = "torch"
VARIANTS = {"default": ("probabilities",)}


def skip(case, variant, device):
    if device.type == "cpu":
        return "on the CPU flex_attention makes 0 of a NaN in q, and compiles no mask with part of a block (seen in Torch 2.13)"
    return None


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    B, T = case.size("B", "T")

    def padded_attention(q, k, v, n_padd):
        def visible(b, h, i, j):
            return (n_padd[b] <= j) & (j <= i)

        tokens = torch.arange(T, device=q.device)
        v = v.masked_fill((tokens < n_padd[:, None])[:, None, :, None], 0)
        mask = create_block_mask(visible, B, None, T, T, device=q.device)
        return flex_attention(q, k, v, block_mask=mask)

    return compiled(padded_attention)
