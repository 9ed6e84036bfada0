"""What torch_eager.py and torch_compile.py of lora_mlp share: the model in PyTorch's operators."""

import torch.nn.functional as F

from implementations._shared.torch.operators import ACTIVATIONS
from implementations.lora_mlp._layers import OF_A_LAYER, by_layer


def perceptron(case):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …) → (M, N of the last layer)."""
    last, transposed, count = ACTIVATIONS[case.options["last"]], case.options["w_layout"] == "nk", case.sizes["LAYERS"]

    def lora_mlp(x, scale, *arrays):
        for number, (W, b, A, B) in enumerate(by_layer(arrays), 1):
            z = F.linear(x, W if transposed else W.T, b) + (x @ A) @ B * scale
            x = last(z) if number == count else F.relu(z)
        return x

    return lora_mlp


def differentiable(case):
    """The places of the inputs that have gradients: all but scale."""
    return (0, *range(2, 2 + OF_A_LAYER * case.sizes["LAYERS"]))
