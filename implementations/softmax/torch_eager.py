"""softmax as PyTorch's own operator: one launch, float32 inside whatever the storage dtype."""

import torch

from implementations._shared.torch.autograd import differentiated

BACKEND = "torch"
VARIANTS = {"default": ()}
BACKWARD = {"default": ("probabilities", "weighted")}  # on a GPU y * dy is a launch of its own


def build(case, variant, device):
    """call(x (R, C)) → (R, C)."""

    def softmax(x):
        return torch.softmax(x, dim=-1)

    return softmax if case.mode == "forward" else differentiated(softmax, (0,))
