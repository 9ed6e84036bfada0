"""add_relu through torch.compile: Inductor makes one kernel of it; `in_place` lets it write into x."""

import torch

from implementations._shared.torch.compile import compiled

BACKEND = "torch"
VARIANTS = {"default": (), "in_place": ()}
IN_PLACE = {"in_place": ("x",)}


def build(case, variant, device):
    """call(x (M, N), b (N,)) → (M, N); x itself where `in_place`."""
    return compiled((lambda x, b: x.add_(b).relu_()) if variant == "in_place" else (lambda x, b: torch.relu(x + b)))
