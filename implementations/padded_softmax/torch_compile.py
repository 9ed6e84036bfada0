"""padded_softmax through torch.compile: mask, softmax and zeros fused by Inductor, the mask computed from the indices.

`default` takes Inductor's heuristics; `max_autotune` lets it search tiles, without CUDA graphs, which would copy the inputs.
"""

import torch

from implementations._shared.torch.compile import compiled

BACKEND = "torch"
VARIANTS = {"default": (), "max_autotune": ()}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(att (T, T), n_padd () int32) → (T, T)."""

    def padded_softmax(att, n_padd):
        tokens = torch.arange(att.shape[0], device=att.device)
        visible = (n_padd <= tokens) & (tokens <= tokens[:, None])
        y = torch.softmax(torch.where(visible, att, float("-inf")), dim=-1)
        return torch.where(visible, y, 0.0)

    return compiled(padded_softmax, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
