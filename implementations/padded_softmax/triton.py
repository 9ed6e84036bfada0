"""padded_softmax in Triton, one launch in every variant: _shared/triton/padded_softmax.py says how they work.

row: a whole row in registers. online: rows of any length, whose visible part is read twice.
"""

from implementations._shared.triton.padded_softmax import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"row": (), "online": ()}
EXPECT = (
    {"variant": ("row", "online"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(att (T, T), n_padd () int32) → (T, T)."""
    (launch,) = launches(case, variant, device, chosen)
    T = case.sizes["T"]
    return launch.returning((T, T))
