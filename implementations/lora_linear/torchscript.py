"""lora_linear through TorchScript: torch.jit.script of the module, as before torch.compile. Torch has deprecated it.

The products are the library's; on a GPU the fuser joins scaling, sum and activation after two calls.
"""

from typing import Final

import torch
import torch.nn.functional as F

from implementations._shared.torch.script import activate, scripted

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias", "xa", "xab", "scaled", "sum")}


class LoraLinear(torch.nn.Module):
    """act(x @ W + b + scale * (x @ A) @ B), W stored (K, N) or, `transposed`, (N, K)."""

    activation: Final[str]
    transposed: Final[bool]

    def __init__(self, activation: str, transposed: bool):
        super().__init__()
        self.activation, self.transposed = activation, transposed

    def forward(self, x, scale, W, b, A, B):
        z = F.linear(x, W if self.transposed else W.t(), b)
        return activate(self.activation, z + (x @ A) @ B * scale)


def build(case, variant, device):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    return scripted(LoraLinear(case.options["activation"], case.options["w_layout"] == "nk"))
