"""splacc in Triton, one launch in every variant: _triton_kernels.py says how it works.

two_accumulators: B as it is stored. interleaved: B with the columns of its halves alternating, prepared once.
recompute, in the backward modes: nothing is kept but the inputs (gated_backward.py).
"""

from fusebench.launchers import chained
from implementations._shared.recompute import recomputing
from implementations._shared.triton import gated_backward
from implementations._shared.triton.gated_backward import TUNABLES, config, fits, skip  # noqa: F401 (parts of the contract)
from implementations._shared.triton.gated_matmul import interleave
from implementations.splacc._triton_kernels import alone, launches

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"two_accumulators": (), "interleaved": (), "recompute": ()}
BACKWARD = {"two_accumulators": ("product", "dz"), "recompute": ("product", "dz")}
EXPECT = (
    {"variant": ("two_accumulators", "interleaved"), "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": ("two_accumulators", "interleaved"), "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": ("two_accumulators", "recompute"), "case": "small", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def prepare(case, variant, A, B):
    """interleaved: B with the columns of its halves alternating."""
    return (interleave(B, case).contiguous(),) if variant == "interleaved" else ()


def build(case, variant, device, chosen):
    """call(A (M, K), B, *prepared) → (M, N)."""
    if case.mode != "forward":
        return chained(_differentiated(case, variant, device, chosen))
    (launch,) = launches(case, variant, device, chosen)
    run = launch.returning(case.size("M", "N"), M=case.sizes["M"])
    return lambda A, B, prepared=None: run(A, B if prepared is None else prepared)


def _differentiated(case, variant, device, chosen):
    """(forward, backward) of three launches (gated_backward.py)."""
    M, K, N = case.size("M", "K", "N")
    first = gated_backward.forward_launch(case, device, "splacc").returning((M, 2 * N), (M, N), M=M)
    described, last = gated_backward.backward_launches(case, chosen, "splacc")
    weights = (2 * N, K) if case.options["w_layout"] == "nk" else (K, 2 * N)
    gate, products = described.returning((M, 2 * N)), last.returning((M, K), weights, M=M)

    def forward(A, B):
        Z, y = first(A, B, B)
        return y, (A, B, Z)

    def backward(residuals, dy):
        A, B, Z = residuals
        return products(gate(Z, dy), B, A)

    if variant == "recompute":
        return recomputing(alone(case, device).returning((M, N), M=M), forward, backward)
    return forward, backward
