"""dlrm in Triton: kernels that it shares with fused_mlp, embedding and interaction; _triton_kernels.py says which.

modulus, improved: look-ups within the interaction. naive: a launch of their own, behind a copy of the known values.
"""

from implementations._shared import dlrm
from implementations._shared.torch.lookup import prepared_for_kernels
from implementations.dlrm._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "modulus": ("hidden", "interaction"),
    "improved": ("hidden", "interaction"),
    "naive": ("hidden", "interaction"),
}
EXPECT = (
    {"variant": "modulus", "case": "main", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": ("naive", "improved"), "case": "main", "dtype": "bfloat16", "options": {"hashing": "lookup"},
     "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return prepared_for_kernels(variant, given.offsets, given.known)


def build(case, variant, device, chosen):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1)."""
    bottom, *looked_up, interaction, top = (launch.bind() for launch in launches(case, variant, device, chosen))
    M, F, D = case.size("M", "F", "D")
    width = dlrm.interaction_width(case)

    def call(*arguments):
        given = dlrm.by_part(case, arguments)
        vector, crossed, y = (given.tables.new_empty((M, columns)) for columns in (D, width, 1))
        bottom(given.dense, *given.bottom, M, vector)
        if looked_up:
            sparse = given.tables.new_empty((M, F, D))
            looked_up[0](given.ids, given.tables, given.offsets, given.prepared[0].to(given.ids.device), M, sparse)
            interaction(vector, sparse, crossed)
        else:
            interaction(vector, given.ids, given.tables, given.offsets, *given.prepared, crossed)
        top(crossed, *given.top, M, y)
        return y

    return call
