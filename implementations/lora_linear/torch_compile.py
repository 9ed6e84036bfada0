"""lora_linear through torch.compile: Inductor joins scaling, sum and activation, after the library's three products.

`default` keeps the library's products; `max_autotune` lets Inductor choose among its own Triton products, without CUDA
graphs, which would copy the inputs.
"""

import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias", "xa", "xab"), "max_autotune": ("product", "bias", "xa", "xab")}
BACKWARD = {
    "default": ("product", "bias", "xa", "xab", "value", "dz", "dscaled", "dxa", "straight", "through"),
    "max_autotune": ("product", "bias", "xa", "xab", "value", "dz", "dscaled", "dxa", "straight", "through"),
}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    activate, transposed = ACTIVATIONS[case.options["activation"]], case.options["w_layout"] == "nk"

    def lora_linear(x, scale, W, b, A, B):
        return activate(F.linear(x, W if transposed else W.T, b) + (x @ A) @ B * scale)

    call = compiled(lora_linear, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
    return in_mode(case, call, (0, 2, 3, 4, 5))
