"""add_mul_act through TorchScript: torch.jit.script of the module, as before torch.compile. Torch has deprecated it.

On a GPU its fuser makes one kernel of the operators after two calls; on a CPU they run one after the other, each result rounded to
the storage dtype.
"""

from typing import Final

import torch

from implementations._shared.torch.script import activate, scripted

BACKEND = "torch"
VARIANTS = {"default": ("sum", "bias")}


class AddMulAct(torch.nn.Module):
    """act(x + multiplier * z + b)."""

    activation: Final[str]

    def __init__(self, activation: str):
        super().__init__()
        self.activation = activation

    def forward(self, x, z, multiplier, b):
        return activate(self.activation, torch.addcmul(x, z, multiplier) + b)


def build(case, variant, device):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N)."""
    return scripted(AddMulAct(case.options["activation"]))
