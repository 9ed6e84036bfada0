"""padded_attention through torch.nn.attention.flex_attention: Inductor writes one Triton kernel for the mask that it is given.

The block mask holds n_padd, which may change, so it is made in the call. It has a graph of its own: made in the graph of the
attention, with several batch entries and blocks, it led to wrong results and illegal accesses (seen in Torch 2.11). A mask hides
no NaN in v: its padding is set to 0, and backward that of q and k as well. Rows that see nothing are 0 by flex_attention's own rule.
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled

BACKEND = "torch"
VARIANTS = {"default": ("probabilities",)}
BACKWARD = {"default": ("probabilities", "dscaled", "output")}


def skip(case, variant, device):
    if device.type == "cpu":
        return "on the CPU flex_attention makes 0 of a NaN in q, and compiles no mask with part of a block (seen in Torch 2.13)"
    return None


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    B, T = case.size("B", "T")

    @compiled
    def mask(n_padd):
        def visible(b, h, i, j):
            return (n_padd[b] <= j) & (j <= i)

        return create_block_mask(visible, B, None, T, T, device=n_padd.device)

    @compiled
    def attend(q, k, v, n_padd, block_mask):
        padding = (torch.arange(T, device=q.device) < n_padd[:, None])[:, None, :, None]
        if case.mode != "forward":  # 0 × NaN of padding would reach the gradients
            q, k = q.masked_fill(padding, 0), k.masked_fill(padding, 0)
        return flex_attention(q, k, v.masked_fill(padding, 0), block_mask=block_mask)

    return in_mode(case, lambda q, k, v, n_padd: attend(q, k, v, n_padd, mask(n_padd)), (0, 1, 2))
