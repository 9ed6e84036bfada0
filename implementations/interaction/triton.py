"""interaction in Triton, one launch in either form: _triton_kernels.py says how they work."""

import torch

from implementations.interaction._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ()}
EXPECT = (
    {"variant": "default", "case": "main", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip


def build(case, variant, device, chosen):
    (launch,) = launches(case, variant, device, chosen)
    run = launch.bind()
    M, F, D = case.size("M", "F", "D")
    width = D + F * (F + 1) // 2 if case.options["form"] == "dot" else ((F + 1) * D) ** 2

    def call(dense, sparse):
        y = torch.empty((M, width), dtype=dense.dtype, device=dense.device)
        run(dense, sparse, y)
        return y

    return call
