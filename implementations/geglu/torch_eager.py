"""geglu as PyTorch's own operators: a linear layer, GELU of its right half, a product, each rounded to the storage dtype."""

import torch
import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias", "gate")}
BACKWARD = {"default": ("product", "bias", "gate", "weighted", "dz")}


def build(case, variant, device):
    """call(x (M, K), W, b (2N,)) → (M, N)."""
    activate, transposed = ACTIVATIONS[case.options["activation"]], case.options["w_layout"] == "nk"

    def call(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        z1, z2 = F.linear(x, W if transposed else W.T, b).chunk(2, dim=1)
        return z1 * activate(z2)

    return in_mode(case, call, (0, 1, 2))
