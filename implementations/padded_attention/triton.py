"""padded_attention in Triton, one launch in every variant: _shared/triton/attention.py says how they work.

flash: blocks of tokens with a running maximum. whole_row: all scores of a tile of rows at once, for short sequences.
one_launch: flash, whose backward pass is one launch instead of two (_triton_backward.py).
"""

import torch

from implementations.padded_attention import _triton_backward as backward
from implementations.padded_attention._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",), "one_launch": ("probabilities",)}
EXPECT = (
    {"variant": "flash", "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "whole_row", "case": "published", "dtype": "bfloat16", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    {"variant": "flash", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": "whole_row", "case": "odd", "dtype": "bfloat16", "arch": "sm_80", "expect": "spills=0,tensor_core>=1"},
    {"variant": ("flash", "one_launch"), "case": ("published", "batch", "wide"), "dtype": "bfloat16", "mode": "backward",
     "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    {"variant": "flash", "case": ("batch", "wide"), "dtype": "bfloat16", "mode": "backward", "arch": "sm_90a", "expect": "HGMMA>=1"},
)  # fmt: skip
BACKWARD = {
    "flash": ("probabilities", "dscaled", "output"),
    "one_launch": ("probabilities", "dscaled", "output"),
}


def build(case, variant, device, chosen):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    if case.mode != "forward":
        return _differentiated(case, variant, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    return launch.returning(case.size("B", "H", "T", "D"))


def _contiguous(q, k, v):
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        raise ValueError("q, k or v is not contiguous; pass q.contiguous()")


def _differentiated(case, variant, device, chosen):
    """(forward, backward); y and the logarithms of the rows' sums are kept beside the inputs."""
    first = backward.forward_launch(case, device).bind()
    run, *others = [launch.bind() for launch in backward.backward_launches(case, variant, chosen)]
    statistics = case.size("B", "H", "T")

    def forward(q, k, v, n_padd):
        _contiguous(q, k, v)
        y, lse = torch.empty_like(q), q.new_empty(statistics, dtype=torch.float32)
        first(q, k, v, n_padd, y, lse)
        return y, (q, k, v, n_padd, y, lse)

    def gradients(residuals, dy):
        q, k, v, n_padd, y, lse = residuals
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        if not others:
            run(q, k, v, n_padd, y, lse, dy, dq, dk, dv)
            return dq, dk, dv
        (tokens,) = others
        delta = torch.empty_like(lse)
        run(q, k, v, n_padd, y, lse, dy, dq, delta)
        tokens(q, k, v, n_padd, lse, dy, delta, dk, dv)
        return dq, dk, dv

    return forward, gradients
