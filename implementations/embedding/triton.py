"""embedding in Triton, hashing and gather in one launch in every variant: _shared/triton/lookup.py says how they work.

modulus: the remainder. naive: the known values move to the device in every call and are compared one by one. improved: they
stay there, sorted, and are searched.
"""

import torch

from implementations._shared.torch.lookup import prepared_for_kernels
from implementations._shared.triton.lookup import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
EXPECT = (
    {"variant": "modulus", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("naive", "improved"), "case": "small", "options": {"hashing": "lookup"}, "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
)  # fmt: skip


def prepare(case, variant, ids, tables, offsets, known=None):
    return prepared_for_kernels(variant, offsets, known)


def build(case, variant, device, chosen):
    (launch,) = launches(case, variant, device, chosen)
    run, shape = launch.bind(), case.size("M", "F", "D")
    count = shape[0] if variant == "naive" else shape[0] * shape[1]

    def call(ids, tables, offsets, known=None, *prepared):
        y = torch.empty(shape, dtype=tables.dtype, device=tables.device)
        if variant == "naive":
            prepared = (prepared[0].to(ids.device),)
        run(ids, tables, offsets, *prepared, count, y)
        return y

    return call
