"""padded_attention in Triton, one launch in every variant: _shared/triton/attention.py says how they work.

flash: blocks of tokens with a running maximum. whole_row: all scores of a tile of rows at once, for short sequences.
one_launch: flash, whose backward pass is one launch instead of two (_triton_backward.py).
"""

from fusebench.launchers import chained
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
        return chained(_differentiated(case, variant, device, chosen))
    (launch,) = launches(case, variant, device, chosen)
    return launch.returning(case.size("B", "H", "T", "D"))


def _differentiated(case, variant, device, chosen):
    """(forward, backward); y and the logarithms of the rows' sums are kept beside the inputs."""
    shape, statistics = case.size("B", "H", "T", "D"), case.size("B", "H", "T")
    first = backward.forward_launch(case, device).returning(shape, statistics)
    described, *others = backward.backward_launches(case, variant, chosen)

    def forward(q, k, v, n_padd):
        y, lse = first(q, k, v, n_padd)
        return y, (q, k, v, n_padd, y, lse)

    if not others:
        both = described.returning(shape, shape, shape)
        return forward, lambda residuals, dy: both(*residuals, dy)
    queries, tokens = described.returning(shape, statistics), others[0].returning(shape, shape)

    def gradients(residuals, dy):
        q, k, v, n_padd, _, lse = residuals
        dq, delta = queries(*residuals, dy)
        return dq, *tokens(q, k, v, n_padd, lse, dy, delta)

    return forward, gradients
