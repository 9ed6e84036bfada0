"""splacc in Triton, one launch in every variant: _triton_kernels.py says how it works.

two_accumulators: B as it is stored. interleaved: B with the columns of its halves alternating, prepared once.
"""

import torch

from implementations._shared.triton import gated_backward
from implementations._shared.triton.gated_backward import TUNABLES, config, fits  # noqa: F401 (parts of the contract)
from implementations._shared.triton.gated_matmul import interleave
from implementations.splacc._triton_kernels import launches

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"two_accumulators": (), "interleaved": ()}
BACKWARD = {"two_accumulators": ("product", "dz")}
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
    if case.mode != "forward":
        return _differentiated(case, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    run = launch.returning(case.size("M", "N"), M=case.sizes["M"])
    return lambda A, B, prepared=None: run(A, B if prepared is None else prepared)


def _differentiated(case, device, chosen):
    """(forward, backward) of three launches (gated_backward.py)."""
    first = gated_backward.forward_launch(case, device, "splacc").bind()
    gate, products = (launch.bind() for launch in gated_backward.backward_launches(case, chosen, "splacc"))
    M, N = case.size("M", "N")

    def forward(A, B):
        Z, y = A.new_empty(M, 2 * N), A.new_empty(M, N)
        first(A, B, B, M, Z, y)
        return y, (A, B, Z)

    def backward(residuals, dy):
        A, B, Z = residuals
        dZ, dA, dB = torch.empty_like(Z), torch.empty_like(A), torch.empty_like(B)
        gate(Z, dy, dZ)
        products(dZ, B, A, M, dA, dB)
        return dA, dB

    return forward, backward
