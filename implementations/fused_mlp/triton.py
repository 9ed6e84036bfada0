"""fused_mlp in Triton, one launch: a tile of rows goes through all layers on chip. _shared/triton/perceptron.py says how."""

import torch

from implementations._shared.triton.perceptron import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("hidden",)}
EXPECT = (
    {"variant": "default", "case": "bottom", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer)."""
    (launch,) = launches(case, variant, device, chosen)
    run = launch.bind()
    M, layers = case.size("M", "LAYERS")
    shape = (M, case.sizes[f"N{layers}"])

    def call(x, *weights):
        y = torch.empty(shape, dtype=x.dtype, device=x.device)
        run(x, *weights, M, y)
        return y

    return call
