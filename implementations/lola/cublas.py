"""The product x @ W alone, by Torch's library (cuBLAS on a GPU): what a fused lola has to be measured by, not a lola."""

from implementations._shared.torch.operators import product

BACKEND = "torch"
VARIANTS = {"default": ("subnormals",)}  # Torch's products of bfloat16 on a CPU flush them to zero
COMPUTES = "product"  # of kernel.py's PARTS


def build(case, variant, device):
    """call(x (M, K), W, b (N,)) → (M, N)."""
    multiply = product(case)
    return lambda x, W, b: multiply(x, W)
