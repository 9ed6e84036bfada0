"""splacc as PyTorch's own operators: a product, two activations and their product, each rounded to the storage dtype.

Torch's products of bfloat16 on a CPU flush subnormals to zero.
"""

import torch

from implementations._shared.torch.autograd import in_mode

BACKEND = "torch"
VARIANTS = {"default": ("product", "sigmoid", "tanh", "subnormals")}
BACKWARD = {"default": ("product", "sigmoid", "tanh", "slope", "weighted", "square", "dz", "subnormals")}


def build(case, variant, device):
    """call(A (M, K), B) → (M, N)."""
    transposed = case.options["w_layout"] == "nk"

    def call(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        left, right = (A @ (B.T if transposed else B)).chunk(2, dim=1)
        return torch.sigmoid(left) * torch.tanh(right)

    return in_mode(case, call, (0, 1))
