"""padded_attention in Triton, one launch in every variant: _shared/triton/attention.py says how they work.

flash: blocks of tokens with a running maximum. whole_row: all scores of a tile of rows at once, for short sequences.
"""

import torch

from implementations._shared.triton.attention import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
EXPECT = (
    {"variant": "flash", "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "whole_row", "case": "published", "dtype": "bfloat16", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    {"variant": "flash", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": "whole_row", "case": "odd", "dtype": "bfloat16", "arch": "sm_80", "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    (launch,) = launches(case, variant, device, chosen)
    run = launch.bind()

    def call(q, k, v, n_padd):
        if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
            raise ValueError("q, k or v is not contiguous; pass q.contiguous()")
        y = torch.empty_like(q)
        run(q, k, v, n_padd, y)
        return y

    return call
