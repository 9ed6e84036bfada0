"""The product x @ W alone, by Torch's library (cuBLAS on a GPU): what a fused lola has to be measured by, not a lola."""

import torch

BACKEND = "torch"
VARIANTS = {"default": ("subnormals",)}  # Torch's products of bfloat16 on a CPU flush them to zero
COMPUTES = "product"  # of kernel.py's PARTS


def build(case, variant, device):
    """call(x (M, K), W, b (N,)) → (M, N)."""
    transposed = case.options["w_layout"] == "nk"

    def call(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, W.T if transposed else W)

    return call
