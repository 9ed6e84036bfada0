"""lora_linear as PyTorch's own operators, in the order of the usual adapter libraries: the frozen layer, then the adapter."""

import torch
import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias", "xa", "xab", "scaled", "sum")}
BACKWARD = {
    "default": ("product", "bias", "xa", "xab", "scaled", "sum", "value", "dz", "dscaled", "dxa", "straight", "through")
}


def build(case, variant, device):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    activate = ACTIVATIONS[case.options["activation"]]
    transposed = case.options["w_layout"] == "nk"

    def call(x: torch.Tensor, scale: torch.Tensor, W, b, A, B) -> torch.Tensor:
        return activate(F.linear(x, W if transposed else W.T, b) + (x @ A) @ B * scale)

    return in_mode(case, call, (0, 2, 3, 4, 5))
