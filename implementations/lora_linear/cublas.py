"""The product x @ W alone, by Torch's library (cuBLAS on a GPU): what the adapter's cost has to be measured by, not a layer."""

from implementations._shared.torch.operators import product

BACKEND = "torch"
VARIANTS = {"default": ("subnormals",)}  # flushed to zero by Torch's 16-bit product on CPUs
COMPUTES = "product"  # of kernel.py's PARTS


def build(case, variant, device):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    multiply = product(case)
    return lambda x, scale, W, b, A, B: multiply(x, W)
