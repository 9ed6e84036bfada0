"""The product A @ B alone, by Torch's library (cuBLAS on a GPU): what a fused splacc has to be measured by, not a splacc."""

from implementations._shared.torch.operators import product

BACKEND = "torch"
VARIANTS = {"default": ("subnormals",)}  # Torch's products of bfloat16 on a CPU flush them to zero
COMPUTES = "product"  # of kernel.py's PARTS


def build(case, variant, device):
    """call(A (M, K), B) → (M, 2N)."""
    return product(case)
