"""lora_mlp through torch.compile: Inductor joins scaling, sum and activation of a layer, after the library's three products.

`default` keeps the library's products; `max_autotune` lets Inductor choose among its own Triton products, without CUDA
graphs, which would copy the inputs.
"""

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations.lora_mlp._torch import differentiable, perceptron

BACKEND = "torch"
VARIANTS = {
    "default": ("product", "bias", "xa", "xab", "hidden"),
    "max_autotune": ("product", "bias", "xa", "xab", "hidden"),
}
BACKWARD = {
    "default": (
        "product", "bias", "xa", "xab", "hidden", "value", "dz", "dscaled", "dxa", "straight", "through", "dhidden",
    ),
    "max_autotune": (
        "product", "bias", "xa", "xab", "hidden", "value", "dz", "dscaled", "dxa", "straight", "through", "dhidden",
    ),
}  # fmt: skip


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …) → (M, N of the last layer)."""
    call = compiled(perceptron(case), "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
    return in_mode(case, call, differentiable(case))
