"""lola through torch.compile: Inductor fuses LayerNorm into one kernel and activation into another, around the product.

`default` keeps the library's product; `max_autotune` lets Inductor choose among its own Triton products, without CUDA
graphs, which would copy the inputs.
"""

import torch.nn.functional as F

from implementations._shared.torch.autograd import differentiated
from implementations._shared.torch.compile import compiled
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": ("layernorm", "product", "bias"), "max_autotune": ("layernorm", "product", "bias")}
BACKWARD = {
    "default": ("layernorm", "product", "bias", "dz", "dn"),
    "max_autotune": ("layernorm", "product", "bias", "dz", "dn"),
}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(x (M, K), W, b (N,)) → (M, N)."""
    K = case.sizes["K"]
    activate, transposed = ACTIVATIONS[case.options["activation"]], case.options["w_layout"] == "nk"

    def lola(x, W, b):
        return activate(F.linear(F.layer_norm(x, (K,), eps=1e-5), W if transposed else W.T, b))

    call = compiled(lola, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
    return call if case.mode == "forward" else differentiated(call, (0, 1, 2))
