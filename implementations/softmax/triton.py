"""softmax in Triton, one launch in every variant: _triton_kernels.py says how they work.

row: whole rows in registers. persistent: the same with the next rows on their way. online: rows of any length, read twice.
"""

import torch

from implementations.softmax._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"row": (), "persistent": (), "online": ()}
EXPECT = (
    {"variant": ("row", "persistent", "online"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (R, C)) → (R, C)."""
    (launch,) = launches(case, variant, device, chosen)
    run, R = launch.bind(), case.sizes["R"]

    def call(x):
        if not x.is_contiguous():
            raise ValueError("x is not contiguous; pass x.contiguous()")
        y = torch.empty_like(x)
        run(x, R, y)
        return y

    return call
