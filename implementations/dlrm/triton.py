"""dlrm in Triton: kernels that it shares with fused_mlp, embedding and interaction; _triton_kernels.py says which.

modulus, improved: look-ups within the interaction. naive: a launch of their own, behind a copy of the known values. modulus_split and
improved_split are for few rows: seven launches, in which programs share out the weights of wide layers.
"""

from fusebench.launchers import chained
from implementations._shared import dlrm
from implementations._shared.torch.lookup import prepared_for_kernels
from implementations.dlrm._triton_kernels import (  # noqa: F401 (parts of the contract)
    TUNABLES,
    config,
    fits,
    hashing_of,
    launches,
    named_launches,
    outputs_of,
    run_model,
    skip,
)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "modulus": ("hidden", "interaction"),
    "improved": ("hidden", "interaction"),
    "naive": ("hidden", "interaction"),
    "modulus_split": ("hidden", "interaction"),
    "improved_split": ("hidden", "interaction"),
}
EXPECT = (  # other folders have the other kernels too, and expect the same of them on all targets
    {"variant": "modulus_split", "case": "main", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "modulus", "case": "main", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,tensor_core>=1"},
    {"variant": ("naive", "improved", "improved_split"), "case": "main", "dtype": "bfloat16", "options": {"hashing": "lookup"},
     "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return prepared_for_kernels(hashing_of(variant), given.offsets, given.known)


def build(case, variant, device, chosen):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1)."""
    described = named_launches(case, variant, device, chosen)
    made = outputs_of(case, variant, described)
    launched = {name: described[name].returning(shape, **numbers) for name, (shape, numbers) in made.items()}

    parts = dlrm.parts_of(case)

    def call(*arguments):
        given = parts(arguments)
        return run_model(given, launched, lambda known: known.to(given.tables.device))

    return chained(call)
