"""padded_attention through torch.compile: Inductor fuses scale, mask and softmax between the two library products.

`default` takes Inductor's heuristics; `max_autotune` lets it search tiles, without CUDA graphs, which would copy the inputs.
Attention as one kernel is Torch's flex_attention and scaled_dot_product_attention: flex_attention.py and sdpa.py.
"""

import math

import torch

from implementations._shared.torch.autograd import differentiated
from implementations._shared.torch.compile import compiled

BACKEND = "torch"
VARIANTS = {"default": ("scores", "probabilities"), "max_autotune": ("scores", "probabilities")}
BACKWARD = {
    "default": ("scores", "probabilities", "dprobabilities", "dscaled", "dscores"),
    "max_autotune": ("scores", "probabilities", "dprobabilities", "dscaled", "dscores"),
}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    T, D = case.size("T", "D")

    def padded_attention(q, k, v, n_padd):
        tokens = torch.arange(T, device=q.device)
        padding = tokens < n_padd[:, None, None, None]
        hidden = (tokens > tokens[:, None]) | padding
        scores = (torch.matmul(q, k.mT).float() * (1 / math.sqrt(D))).masked_fill(hidden, float("-inf"))
        probabilities = torch.softmax(scores, dim=-1).masked_fill(hidden, 0).to(q.dtype)
        return torch.matmul(probabilities, v.masked_fill(padding.mT, 0))

    def trained(q, k, v, n_padd):
        """The same; 0 × NaN of padding would reach the gradients."""
        tokens = torch.arange(T, device=q.device)
        padding = tokens < n_padd[:, None, None, None]
        hidden = (tokens > tokens[:, None]) | padding
        q, k, v = (a.masked_fill(padding.mT, 0) for a in (q, k, v))
        scores = (torch.matmul(q, k.mT).float() * (1 / math.sqrt(D))).masked_fill(hidden, float("-inf"))
        scores = scores.masked_fill(padding.mT, 0)  # a row that sees nothing would be NaN
        probabilities = torch.softmax(scores, dim=-1).masked_fill(hidden, 0).to(q.dtype)
        return torch.matmul(probabilities, v)

    mode = "max-autotune-no-cudagraphs" if variant == "max_autotune" else None
    if case.mode != "forward":
        return differentiated(compiled(trained, mode), (0, 1, 2))
    return compiled(padded_attention, mode)
