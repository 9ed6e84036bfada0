"""lora_mlp as PyTorch's own operators, in the order of the usual adapter libraries: the frozen layer, then its adapter, then ReLU."""

from implementations._shared.torch.autograd import in_mode
from implementations.lora_mlp._torch import differentiable, perceptron

BACKEND = "torch"
VARIANTS = {"default": ("product", "bias", "xa", "xab", "scaled", "sum")}
BACKWARD = {
    "default": (
        "product", "bias", "xa", "xab", "scaled", "sum", "value", "dz", "dscaled", "dxa", "straight", "through", "dhidden",
    )
}  # fmt: skip


def build(case, variant, device):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …) → (M, N of the last layer)."""
    return in_mode(case, perceptron(case), differentiable(case))
