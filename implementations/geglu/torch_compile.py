"""geglu through torch.compile: GELU and gate in one kernel behind the linear layer.

`default` keeps the library's product; `max_autotune` lets Inductor choose among its own Triton products, without CUDA
graphs, which would copy the inputs.
"""

import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias"), "max_autotune": ("product", "bias")}
BACKWARD = {
    "default": ("product", "bias", "gate", "weighted", "dz"),
    "max_autotune": ("product", "bias", "gate", "weighted", "dz"),
}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(x (M, K), W, b (2N,)) → (M, N)."""
    activate, transposed = ACTIVATIONS[case.options["activation"]], case.options["w_layout"] == "nk"

    def geglu(x, W, b):
        z1, z2 = F.linear(x, W if transposed else W.T, b).chunk(2, dim=1)
        return z1 * activate(z2)

    call = compiled(geglu, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
    return in_mode(case, call, (0, 1, 2))
