"""padded_softmax_v in Triton, one launch in every variant: _shared/triton/weighted_values.py says how they work.

flash: blocks of scores with a running maximum. whole_row: all scores of 16 rows at once, for short sequences.
"""

from implementations._shared.triton.weighted_values import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
EXPECT = (
    {"variant": "flash", "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "whole_row", "case": "published", "dtype": "bfloat16", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    # here its registers do not suffice
    {"variant": "whole_row", "case": "odd", "dtype": "bfloat16", "arch": "sm_80", "expect": "tensor_core>=1"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D)."""
    (launch,) = launches(case, variant, device, chosen)
    return launch.returning(case.size("T", "D"))
