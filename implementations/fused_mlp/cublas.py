"""The products alone, one after the other, by Torch's library (cuBLAS on a GPU): no biases and no activations, so not a
perceptron, but what one has to be measured by."""

from implementations._shared.torch.operators import product

BACKEND = "torch"
VARIANTS = {"default": ("hidden", "subnormals")}  # the latter flushed to zero by Torch's 16-bit product on CPUs
COMPUTES = "products"  # of kernel.py's PARTS


def build(case, variant, device):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer)."""
    multiply = product(case)

    def call(x, *layers):
        for W in layers[::2]:
            x = multiply(x, W)
        return x

    return call
