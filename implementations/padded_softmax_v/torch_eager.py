"""padded_softmax_v as PyTorch's own operators: a mask, the masked scores, softmax, 0 where nothing is visible, a product.

The causal half of the mask is made once; padding is compared on the device, so that the host never waits for n_padd. Rows of
v that are padding become 0 first: 0 × NaN would be NaN.
"""

import torch

BACKEND = "torch"
VARIANTS = {"default": ("probabilities",)}


def build(case, variant, device):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D)."""
    T = case.sizes["T"]
    tokens = torch.arange(T, device=device.type)
    future = tokens > tokens[:, None]

    def call(att, v, n_padd):
        padding = tokens < n_padd
        hidden = future | padding
        probabilities = torch.softmax(att.masked_fill(hidden, float("-inf")), dim=-1).masked_fill_(hidden, 0)
        return torch.mm(probabilities, v.masked_fill(padding[:, None], 0))

    return call
