"""softmax through torch.compile: Inductor writes one Triton kernel, which keeps short rows on chip and re-reads long ones.

`default` takes Inductor's heuristics; `max_autotune` lets it search tiles, without CUDA graphs, which would copy the input.
"""

import torch

from implementations._shared.torch.autograd import differentiated
from implementations._shared.torch.compile import compiled

BACKEND = "torch"
VARIANTS = {"default": (), "max_autotune": ()}
BACKWARD = {"default": ("probabilities",), "max_autotune": ("probabilities",)}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(x (R, C)) → (R, C)."""
    mode = "max-autotune-no-cudagraphs" if variant == "max_autotune" else None
    call = compiled(lambda x: torch.softmax(x, dim=-1), mode)
    return call if case.mode == "forward" else differentiated(call, (0,))
