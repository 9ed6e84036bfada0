"""The product A @ B alone, by Torch's library (cuBLAS on a GPU): what a fused splacc has to be measured by, not a splacc."""

import torch

BACKEND = "torch"
VARIANTS = {"default": ("subnormals",)}  # Torch's products of bfloat16 on a CPU flush them to zero
COMPUTES = "product"  # of kernel.py's PARTS


def build(case, variant, device):
    """call(A (M, K), B) → (M, 2N)."""
    transposed = case.options["w_layout"] == "nk"

    def call(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.mm(A, B.T if transposed else B)

    return call
