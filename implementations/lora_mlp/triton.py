"""lora_mlp in Triton: a launch for each layer with its adapter, the kernel of lora_linear's `fused`."""

from implementations._shared.torch import lora
from implementations.lora_mlp._layers import by_layer, differentiated, layers, widths
from implementations.lora_mlp._triton_kernels import TUNABLES, config, fits, launches, own_config, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("scaled_xa", "hidden")}
BACKWARD = {"default": ("xa", "scaled_xa", "sum", "hidden", "dz", "dxa", "dhidden")}
EXPECT = (  # of kernels that other folders have too, which expect the same on all targets
    {"variant": "default", "case": "synthetic_2048", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "default", "case": "bottom", "dtype": "bfloat16", "arch": "sm_90a", "expect": "HGMMA>=1,unset_registers=0"},
    {"variant": "default", "case": "block", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …) → (M, N of the last layer)."""
    if case.mode != "forward":
        return differentiated(
            case, [lora.differentiated(layer, device, own_config(layer, device)) for layer in layers(case)]
        )
    M, columns = case.sizes["M"], widths(case)[1:]
    described = launches(case, variant, device, chosen)
    runs = [launch.returning((M, N), M=M) for launch, N in zip(described, columns, strict=True)]

    def call(x, scale, *arrays):
        for run, own in zip(runs, by_layer(arrays), strict=True):
            x = run(x, scale, *own)
        return x

    return call
