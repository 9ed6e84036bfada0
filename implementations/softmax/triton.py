"""softmax in Triton, one launch in every variant: _triton_kernels.py says how they work.

row: whole rows in registers. persistent: the same with the next rows on their way. online: rows of any length, read twice.
"""

from implementations.softmax import _triton_backward as backward
from implementations.softmax._triton_kernels import TUNABLES, config, fits, forward_launches, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"row": (), "persistent": (), "online": ()}
EXPECT = (
    {"variant": ("row", "persistent", "online"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
    # rows that begin anywhere move in vectors of 16 bytes
    {"variant": ("row", "persistent", "online"), "case": "published", "dtype": ("float16", "bfloat16", "float32"), "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "LDG.128>=1,STG.128>=1"},
    {"variant": ("row", "online"), "case": "published", "dtype": ("float32", "bfloat16"), "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
BACKWARD = {"row": ("probabilities",), "online": ("probabilities",)}


def build(case, variant, device, chosen):
    """call(x (R, C)) → (R, C)."""
    if case.mode != "forward":
        return _differentiated(case, variant, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    return _call(case, launch)


def _call(case, launch):
    return launch.returning(case.size("R", "C"), R=case.sizes["R"])


def _differentiated(case, variant, device, chosen):
    """(forward, backward), a launch each; y is what the backward one needs."""
    (first,), (second,) = forward_launches(case, variant, device), backward.launches(case, variant, chosen)
    call, gradient = _call(case, first), _call(case, second)

    def forward(x):
        y = call(x)
        return y, y

    return forward, gradient
