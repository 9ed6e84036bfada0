"""The products alone, one after the other, by Torch's library (cuBLAS on a GPU): no biases and no activations, so not a
perceptron, but what one has to be measured by."""

import torch

BACKEND = "torch"
VARIANTS = {"default": ("hidden", "subnormals")}  # the latter flushed to zero by Torch's 16-bit product on CPUs
COMPUTES = "products"  # of kernel.py's PARTS


def build(case, variant, device):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer)."""
    transposed = case.options["w_layout"] == "nk"

    def call(x: torch.Tensor, *layers: torch.Tensor) -> torch.Tensor:
        for W in layers[::2]:
            x = torch.mm(x, W.T if transposed else W)
        return x

    return call
