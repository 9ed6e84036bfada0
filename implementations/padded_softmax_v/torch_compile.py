"""padded_softmax_v through torch.compile: mask, softmax and zeros fused by Inductor, before the library's product.

`default` takes Inductor's heuristics; `max_autotune` lets it search tiles, without CUDA graphs, which would copy the inputs.
"""

import torch

from implementations._shared.torch.compile import compiled

BACKEND = "torch"
VARIANTS = {"default": ("probabilities",), "max_autotune": ("probabilities",)}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D)."""

    def padded_softmax_v(att, v, n_padd):
        tokens = torch.arange(att.shape[0], device=att.device)
        padding = tokens < n_padd
        hidden = (tokens > tokens[:, None]) | padding
        probabilities = torch.softmax(att.masked_fill(hidden, float("-inf")), dim=-1).masked_fill(hidden, 0)
        return torch.mm(probabilities, v.masked_fill(padding[:, None], 0))

    return compiled(padded_softmax_v, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
