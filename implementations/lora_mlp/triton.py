"""lora_mlp in Triton (_shared/triton/lora.py): the kernels of lora_linear, layer by layer.

default         a launch for each layer, lora_linear's `fused`
two_launches    lora_linear's of that name: x @ A of a layer is a launch of its own
"""

from fusebench.launchers import chained
from implementations._shared.torch import lora
from implementations.lora_mlp._layers import by_launches, by_layer, differentiated, layers
from implementations.lora_mlp._triton_kernels import TUNABLES, config, fits, launches, own_config, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("scaled_xa", "hidden"), "two_launches": ("xa", "scaled_xa", "hidden")}
BACKWARD = {"default": ("xa", "scaled_xa", "sum", "hidden", "dz", "dxa", "dhidden")}
EXPECT = (  # of kernels that other folders have too, which expect the same on all targets
    {"variant": "default", "case": "synthetic_2048", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": "block", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,unset_registers=0"},
    {"variant": "default", "case": "bottom", "dtype": "bfloat16", "arch": "sm_90a", "expect": "HGMMA>=1,unset_registers=0"},
    {"variant": "default", "case": "block", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …) → (M, N of the last layer)."""
    if case.mode != "forward":
        of_layers = [lora.differentiated(layer, device, own_config(layer, device)) for layer in layers(case)]
        return chained(differentiated(case, of_layers))
    described = by_launches(variant, launches(case, variant, device, chosen))
    runs = [lora.layer(layer, *own) for layer, own in zip(layers(case), described, strict=True)]

    def call(x, scale, *arrays):
        for run, own in zip(runs, by_layer(arrays), strict=True):
            x = run(x, scale, *own)
        return x

    return chained(call)
