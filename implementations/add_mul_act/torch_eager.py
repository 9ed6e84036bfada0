"""add_mul_act as PyTorch's own operators: three launches, each result rounded to the storage dtype.

addcmul takes the multiplier as a tensor, which stays on the device; `torch.add(x, z, alpha=…)` would fetch it. `in_place`
overwrites x in all three.
"""

import torch

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.operators import ACTIVATIONS, ACTIVATIONS_IN_PLACE

BACKEND = "torch"
VARIANTS = {"default": ("sum", "bias"), "in_place": ("sum", "bias")}
BACKWARD = {"default": ("sum", "bias", "activation", "value", "dsum")}
IN_PLACE = {"in_place": ("x",)}


def build(case, variant, device):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N); x itself where `in_place`."""
    name = case.options["activation"]
    if variant == "in_place":
        activate_in_place = ACTIVATIONS_IN_PLACE[name]
        return lambda x, z, multiplier, b: activate_in_place(x.addcmul_(z, multiplier).add_(b))
    activate = ACTIVATIONS[name]
    return in_mode(case, lambda x, z, multiplier, b: activate(torch.addcmul(x, z, multiplier) + b), (0, 1, 3))
