"""fused_mlp through torch.compile: the library's products, with ReLU as a kernel after each or in Inductor's own products.

`default` keeps the library's products; `max_autotune` lets Inductor choose among its own Triton products, without CUDA
graphs, which would copy the inputs.
"""

import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias"), "max_autotune": ("product", "bias")}
BACKWARD = {
    "default": ("product", "bias", "value", "dz", "dhidden"),
    "max_autotune": ("product", "bias", "value", "dz", "dhidden"),
}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer)."""
    last, transposed = ACTIVATIONS[case.options["last"]], case.options["w_layout"] == "nk"

    def fused_mlp(x, *layers):
        *hidden, (W_last, b_last) = zip(layers[::2], layers[1::2], strict=True)
        for W, b in hidden:
            x = F.relu(F.linear(x, W if transposed else W.T, b))
        return last(F.linear(x, W_last if transposed else W_last.T, b_last))

    call = compiled(fused_mlp, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
    return in_mode(case, call, tuple(range(2 * case.sizes["LAYERS"] + 1)))
