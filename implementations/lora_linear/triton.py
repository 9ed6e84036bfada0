"""lora_linear in Triton: _shared/triton/lora.py says how the kernels work.

fused: one launch. two_launches: x @ A first, then the layer with it.
"""

from fusebench.launchers import chained
from implementations._shared.torch.lora import differentiated, layer
from implementations.lora_linear._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
BACKWARD = {"two_launches": ("xa", "scaled_xa", "sum", "dz", "dxa")}
EXPECT = (
    {"variant": ("fused", "two_launches"), "case": "batch", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": ("fused", "two_launches"), "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0,unset_registers=0"},
    {"variant": ("fused", "two_launches"), "case": "odd_rank", "dtype": "bfloat16", "arch": "sm_90a", "expect": "HGMMA>=1,unset_registers=0"},
    {"variant": "two_launches", "case": "rank16", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    if case.mode != "forward":
        return chained(differentiated(case, device, chosen))
    return chained(layer(case, *launches(case, variant, device, chosen)))
