"""geglu by linear layers of Torch and Liger's Triton kernels for GELU and gate.

Liger gates its second argument with the GELU of its first, so z2 is the first here. As in Liger's own layer, either half has
a product of its own, because its kernels copy inputs that are not contiguous, as halves of Z would be. Backward, their gradients are
put beside one another, so that dx and dW take one product each: two would round twice.
"""

import torch
import torch.nn.functional as F
from liger_kernel.ops.geglu import LigerGELUMulFunction, geglu_backward, geglu_forward

BACKEND = "torch"
REQUIRES = {"liger_kernel": "liger-kernel"}  # and not Triton: its products are Torch's, as in Liger's layer
WITHOUT_GPU = "unavailable"
VARIANTS = {"default": ("product", "bias", "gate")}
BACKWARD = {"default": ("product", "bias", "gate", "weighted", "dz")}
LONGEST = 65536  # columns: what Liger's calculate_settings allows a program


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if case.options["activation"] != "gelu_tanh":
        return "Liger has the tanh form of GELU alone: option.activation=gelu_tanh runs it"
    if case.sizes["N"] > LONGEST:
        return f"Liger, up to 0.8.5, refuses rows of more than {LONGEST} columns"
    return None


def build(case, variant, device):
    """call(x (M, K), W, b (2N,)) → (M, N)."""
    transposed = case.options["w_layout"] == "nk"

    def halves(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        W1, W2 = (W if transposed else W.T).chunk(2)  # views
        b1, b2 = b.chunk(2)
        return F.linear(x, W2, b2), F.linear(x, W1, b1)

    def call(x, W, b):
        return LigerGELUMulFunction.apply(*halves(x, W, b))

    def forward(x, W, b):
        *kept, y = geglu_forward(*halves(x, W, b))
        return y, (x, W, *kept)

    def backward(residuals, dy):
        x, W, z2, z1 = residuals
        dz2, dz1 = geglu_backward(z2, z1, dy)  # in the memory of z
        dz = torch.cat([dz1, dz2], dim=1)
        dx, dW = (dz @ W, dz.T @ x) if transposed else (dz @ W.T, x.T @ dz)
        return dx, dW, dz.sum(0)

    return call if case.mode == "forward" else (forward, backward)
