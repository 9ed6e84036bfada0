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
