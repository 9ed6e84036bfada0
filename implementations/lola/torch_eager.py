"""lola as PyTorch's own operators, one after the other: four launches, each result rounded to the storage dtype."""

import torch
import torch.nn.functional as F

from implementations._shared.torch.autograd import differentiated
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": ("layernorm", "product", "bias")}
BACKWARD = {"default": ("layernorm", "product", "bias", "dz", "dn", "moments")}


def build(case, variant, device):
    """call(x (M, K), W, b (N,)) → (M, N)."""
    K = case.sizes["K"]
    activate = ACTIVATIONS[case.options["activation"]]
    transposed = case.options["w_layout"] == "nk"

    def call(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return activate(F.linear(F.layer_norm(x, (K,), eps=1e-5), W if transposed else W.T, b))

    return call if case.mode == "forward" else differentiated(call, (0, 1, 2))
