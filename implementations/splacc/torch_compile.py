"""splacc through torch.compile: the activations in one kernel behind the product.

`default` keeps the library's product; `max_autotune` lets Inductor choose among its own Triton products, without CUDA
graphs, which would copy the inputs. Torch's products of bfloat16 on a CPU flush subnormals to zero.
"""

import torch

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled

BACKEND = "torch"
VARIANTS = {"default": ("product", "subnormals"), "max_autotune": ("product",)}
BACKWARD = {
    "default": ("product", "sigmoid", "tanh", "weighted", "dz", "subnormals"),
    "max_autotune": ("product", "sigmoid", "tanh", "weighted", "dz", "subnormals"),
}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(A (M, K), B) → (M, N)."""
    transposed = case.options["w_layout"] == "nk"

    def splacc(A, B):
        left, right = (A @ (B.T if transposed else B)).chunk(2, dim=1)
        return torch.sigmoid(left) * torch.tanh(right)

    call = compiled(splacc, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
    return in_mode(case, call, (0, 1))
