"""fused_mlp as PyTorch's own operators: a product with bias and an activation for each layer."""

import torch
import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias")}
BACKWARD = {"default": ("product", "bias", "value", "dz", "dhidden")}


def build(case, variant, device):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer)."""
    last, transposed = ACTIVATIONS[case.options["last"]], case.options["w_layout"] == "nk"

    def call(x: torch.Tensor, *layers: torch.Tensor) -> torch.Tensor:
        *hidden, (W_last, b_last) = zip(layers[::2], layers[1::2], strict=True)
        for W, b in hidden:
            x = F.relu(F.linear(x, W if transposed else W.T, b))
        return last(F.linear(x, W_last if transposed else W_last.T, b_last))

    return in_mode(case, call, tuple(range(2 * case.sizes["LAYERS"] + 1)))
