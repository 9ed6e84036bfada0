"""splacc in Triton, one launch in every variant: _triton_kernels.py says how it works.

two_accumulators: B as it is stored. interleaved: B with the columns of its halves alternating, prepared once.
"""

import torch

from implementations._shared.triton.gated_matmul import TUNABLES, config, fits, interleave  # noqa: F401 (parts of the contract)
from implementations.splacc._triton_kernels import launches

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"two_accumulators": (), "interleaved": ()}
EXPECT = (
    {"variant": ("two_accumulators", "interleaved"), "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": ("two_accumulators", "interleaved"), "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
)  # fmt: skip


def prepare(case, variant, A, B):
    """interleaved: B with the columns of its halves alternating."""
    return (interleave(B, case).contiguous(),) if variant == "interleaved" else ()


def build(case, variant, device, chosen):
    """call(A (M, K), B, *prepared) → (M, N)."""
    (launch,) = launches(case, variant, device, chosen)
    run, shape = launch.bind(), case.size("M", "N")
    M = shape[0]

    def call(A, B, prepared=None):
        y = torch.empty(shape, dtype=A.dtype, device=A.device)
        run(A, B if prepared is None else prepared, M, y)
        return y

    return call
