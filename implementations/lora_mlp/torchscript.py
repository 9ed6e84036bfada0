"""lora_mlp through TorchScript: torch.jit.script of the module, as before torch.compile. Torch has deprecated it.

The products are the library's; on a GPU the fuser joins scaling, sum and activation of a layer after two calls.
"""

from typing import Final

import torch
import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.script import activate, scripted
from implementations.lora_mlp._torch import differentiable

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias", "xa", "xab", "scaled", "sum")}
BACKWARD = {
    "default": (
        "product", "bias", "xa", "xab", "scaled", "sum", "value", "dz", "dscaled", "dxa", "straight", "through", "dhidden",
    )
}  # fmt: skip


class LoraMLP(torch.nn.Module):
    """Linear layers with adapters: `arrays` are W, b, A and B of each, W stored (K, N) or, `transposed`, (N, K)."""

    count: Final[int]
    last: Final[str]
    transposed: Final[bool]

    def __init__(self, count: int, last: str, transposed: bool):
        super().__init__()
        self.count, self.last, self.transposed = count, last, transposed

    def forward(self, x, scale, arrays: list[torch.Tensor]):
        for layer in range(self.count):
            W, b, A, B = arrays[4 * layer], arrays[4 * layer + 1], arrays[4 * layer + 2], arrays[4 * layer + 3]
            z = F.linear(x, W if self.transposed else W.t(), b) + (x @ A) @ B * scale
            x = activate(self.last, z) if layer == self.count - 1 else F.relu(z)
        return x


def build(case, variant, device):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …) → (M, N of the last layer)."""
    run = scripted(LoraMLP(case.sizes["LAYERS"], case.options["last"], case.options["w_layout"] == "nk"))
    return in_mode(case, lambda x, scale, *arrays: run(x, scale, list(arrays)), differentiable(case))
