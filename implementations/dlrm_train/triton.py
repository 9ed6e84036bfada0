"""dlrm_train in Triton: a step in place, of launches that _triton_step.py describes."""

import torch

from implementations._shared import dlrm
from implementations.dlrm_train._triton_step import (  # noqa: F401 (parts of the contract)
    TUNABLES,
    config,
    fits,
    launches,
    named_launches,
    run_step,
    skip,
)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"modulus_in_place": ("cast", "hidden", "interaction", "dz", "dhidden", "dinteraction", "dvectors")}
IN_PLACE = {
    "modulus_in_place": (
        "tables", "bottom_W1", "bottom_b1", "bottom_W2", "bottom_b2", "bottom_W3", "bottom_b3", "bottom_W4", "bottom_b4",
        "top_W1", "top_b1", "top_W2", "top_b2", "top_W3", "top_b3",
    ),
}  # fmt: skip
EXPECT = (
    {"variant": "modulus_in_place", "case": "main", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": "modulus_in_place", "case": "main", "dtype": "float32", "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(dense (M, N0), ids (M, F), labels (M,), weights …) → loss, dvectors, tables, dW, db, W, b of each layer."""
    launched = {name: launch.bind() for name, launch in named_launches(case, variant, device, chosen).items()}

    def call(dense, ids, labels, *weights):
        def run(name, inputs, overwritten, made):
            new = [dense.new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in made]
            launched[name](*inputs, *overwritten, *overwritten, *new)
            return (*overwritten, *new)

        return run_step(case, dlrm.by_part(case, (dense, ids, *weights)), labels, run)

    return call
