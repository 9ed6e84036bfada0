"""padded_attention as PyTorch's own operators: product, scale, mask, softmax, 0 where nothing is visible, product.

The causal half of the mask is made once; padding is compared on the device, so that the host never waits for n_padd. Rows of
v that are padding become 0 first: 0 × NaN would be NaN.
"""

import math

import torch

from implementations._shared.torch.autograd import differentiated

BACKEND = "torch"
VARIANTS = {"default": ("scores", "scaled", "probabilities")}
BACKWARD = {"default": ("scores", "scaled", "probabilities", "dprobabilities", "dscaled", "dscores")}


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    T, D = case.size("T", "D")
    tokens = torch.arange(T, device=device.type)
    future = tokens > tokens[:, None]

    def call(q, k, v, n_padd):
        padding = tokens < n_padd[:, None, None, None]
        hidden = future | padding
        scores = torch.matmul(q, k.mT).mul_(1 / math.sqrt(D)).masked_fill_(hidden, float("-inf"))
        probabilities = torch.softmax(scores, dim=-1).masked_fill_(hidden, 0)
        return torch.matmul(probabilities, v.masked_fill(padding.mT, 0))

    def trained(q, k, v, n_padd):
        """The same without overwriting what autograd keeps; 0 × NaN of padding would reach the gradients."""
        padding = tokens < n_padd[:, None, None, None]
        hidden = future | padding
        q, k, v = (a.masked_fill(padding.mT, 0) for a in (q, k, v))
        scores = (torch.matmul(q, k.mT) * (1 / math.sqrt(D))).masked_fill(hidden, float("-inf"))
        scores = scores.masked_fill(padding.mT, 0)  # a row that sees nothing would be NaN
        probabilities = torch.softmax(scores, dim=-1).masked_fill(hidden, 0)
        return torch.matmul(probabilities, v)

    return call if case.mode == "forward" else differentiated(trained, (0, 1, 2))
