"""lola in Triton, one launch in every variant: _triton_kernels.py says how they work.

row: one token. batched_row: the same kernel for any number of tokens. multirow: tiles of rows on the tensor cores.
multirow_ws: multirow with the column sums of W prepared. multirow_f16acc, multirow_ws_f16acc: the same with the arithmetic of the
published kernels, which sum their products in float16, and multiply float32 inputs in float16 too.
"""

import torch

from fusebench.launchers import chained
from implementations._shared.gpu import weight_row
from implementations.lola import _triton_backward as backward
from implementations.lola._triton_kernels import (  # noqa: F401 (parts of the contract)
    TUNABLES,
    WITH_COLSUM,
    config,
    fits,
    launches,
    pitch,
    skip,
)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "row": (),
    "batched_row": (),
    "multirow": ("one_pass",),
    "multirow_ws": ("one_pass",),
    "multirow_f16acc": ("half_sums",),
    "multirow_ws_f16acc": ("half_sums",),
}
EXPECT = (
    {"variant": "batched_row", "case": "batch", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("multirow", "multirow_ws"), "case": "batch", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "row", "case": "token", "dtype": ("float32", "bfloat16"), "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("multirow_f16acc", "multirow_ws_f16acc"), "case": "batch", "dtype": "float16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA.F16>=1,waits_in_groups=0"},
    {"variant": ("multirow", "multirow_ws"), "case": "batch", "dtype": ("float16", "bfloat16"), "arch": "sm_90a",
     "expect": "HGMMA>=1,waits_in_groups=0"},
    {"variant": ("multirow_f16acc", "multirow_ws_f16acc"), "case": "odd", "dtype": "float16", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "multirow", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
BACKWARD = {"multirow": ("layernorm", "bias", "dz", "normed")}


def prepare(case, variant, x, W, b):
    """For `row` W with rows of whole vectors, where they are not. With prepared column sums: those of W in float32."""
    if variant == "row":
        beyond = pitch(case, variant) - weight_row(case)
        return (torch.nn.functional.pad(W, (0, beyond)),) if beyond else ()
    return (W.sum(0 if case.options["w_layout"] == "kn" else 1, dtype=torch.float32),) if variant in WITH_COLSUM else ()


def build(case, variant, device, chosen):
    if case.mode != "forward":
        return chained(_differentiated(case, device, chosen))
    (launch,) = launches(case, variant, device, chosen)
    call = launch.returning(case.size("M", "N"), M=case.sizes["M"])
    return call if pitch(case, variant) == weight_row(case) else lambda x, W, b, whole: call(x, whole, b)


def _differentiated(case, device, chosen):
    """(forward, backward) of four launches (_triton_backward.py)."""
    M, K, N = case.size("M", "K", "N")
    of_x, of_W, of_y = (M, K), (N, K) if case.options["w_layout"] == "nk" else (K, N), (M, N)
    first, second = backward.forward_launches(case, device)
    normalise, linear = first.returning(of_x, (M,)), second.returning(of_y, of_y, (N,), M=M)
    first, second = backward.backward_launches(case, chosen)
    rows, products = first.returning(of_y, (M, 2)), second.returning(of_x, of_W, (N,), M=M)

    def forward(x, W, b):
        n, rstd = normalise(x)
        z, y, colsum = linear(n, W, b)
        return y, (n, rstd, z, colsum, W, b)

    def backward_(residuals, dy):
        n, rstd, z, colsum, W, b = residuals
        dz, sums = rows(z, b, colsum, dy)
        return products(dz, W, n, rstd, sums)

    return forward, backward_
