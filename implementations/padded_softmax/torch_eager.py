"""padded_softmax as PyTorch's own operators: a mask, the masked scores, softmax, and 0 where nothing is visible.

The causal half of the mask is made once; the padding is compared on the device, so that the host never waits for n_padd.
"""

import torch

BACKEND = "torch"
VARIANTS = {"default": ()}


def build(case, variant, device):
    """call(att (T, T), n_padd () int32) → (T, T)."""
    T = case.sizes["T"]
    tokens = torch.arange(T, device=device.type)
    causal = tokens <= tokens[:, None]

    def call(att, n_padd):
        hidden = ~(causal & (tokens >= n_padd))
        return torch.softmax(att.masked_fill(hidden, float("-inf")), dim=-1).masked_fill_(hidden, 0)

    return call
