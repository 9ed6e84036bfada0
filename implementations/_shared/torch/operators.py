"""What the Torch implementations of several kernels share."""

import torch
import torch.nn.functional as F

ACTIVATIONS = {
    "none": lambda z: z,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "gelu_erf": F.gelu,
    "silu": F.silu,
}

# each overwrites its argument and returns it
ACTIVATIONS_IN_PLACE = {
    "none": lambda z: z,
    "relu": torch.relu_,
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
    "gelu_tanh": lambda z: torch.ops.aten.gelu_(z, approximate="tanh"),  # torch.nn has none
    "gelu_erf": torch.ops.aten.gelu_,
    "silu": lambda z: F.silu(z, inplace=True),
}


def product(case):
    """What multiplies x (M, K) by W as the case stores it, (K, N) or (N, K)."""
    return (lambda x, W: torch.mm(x, W.T)) if case.options["w_layout"] == "nk" else torch.mm
