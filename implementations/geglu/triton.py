"""geglu in Triton, one launch in every variant: _triton_kernels.py says how it works.

two_accumulators: W as it is stored. interleaved: W with the columns of its halves alternating, prepared once.
recompute, in the backward modes: nothing is kept but the inputs (gated_backward.py).
"""

from fusebench.launchers import chained
from implementations._shared.recompute import recomputing
from implementations._shared.triton import gated_backward
from implementations._shared.triton.gated_backward import TUNABLES, config, fits, skip  # noqa: F401 (parts of the contract)
from implementations._shared.triton.gated_matmul import interleave
from implementations.geglu._triton_kernels import alone, launches

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"two_accumulators": (), "interleaved": (), "recompute": ()}
BACKWARD = {"two_accumulators": ("bias", "dz"), "recompute": ("bias", "dz")}
EXPECT = (
    {"variant": ("two_accumulators", "interleaved"), "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": ("two_accumulators", "interleaved"), "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": ("two_accumulators", "recompute"), "case": "small", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def prepare(case, variant, x, W, b):
    """interleaved: W with the columns of its halves alternating."""
    return (interleave(W, case).contiguous(),) if variant == "interleaved" else ()


def build(case, variant, device, chosen):
    """call(x (M, K), W, b (2N,), *prepared) → (M, N)."""
    if case.mode != "forward":
        return chained(_differentiated(case, variant, device, chosen))
    (launch,) = launches(case, variant, device, chosen)
    run = launch.returning(case.size("M", "N"), M=case.sizes["M"])
    return lambda x, W, b, prepared=None: run(x, W if prepared is None else prepared, b)


def _differentiated(case, variant, device, chosen):
    """(forward, backward) of three launches (gated_backward.py)."""
    M, K, N = case.size("M", "K", "N")
    first = gated_backward.forward_launch(case, device, "geglu").returning((M, 2 * N), (M, N), M=M)
    described, last = gated_backward.backward_launches(case, chosen, "geglu")
    weights = (2 * N, K) if case.options["w_layout"] == "nk" else (K, 2 * N)
    gate, products = described.returning((M, 2 * N)), last.returning((M, K), weights, (2 * N,), M=M)

    def forward(x, W, b):
        Z, y = first(x, W, b)
        return y, (x, W, b, Z)

    def backward(residuals, dy):
        x, W, _, Z = residuals
        return products(gate(Z, dy), W, x)

    if variant == "recompute":
        return recomputing(alone(case, device).returning((M, N), M=M), forward, backward)
    return forward, backward
