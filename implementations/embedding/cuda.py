"""embedding in CUDA C++ (lookup.cuh describes the algorithms): hashing and gather in one launch in every variant.

modulus: the remainder. naive: the known values move to the device in every call and are compared one by one. improved: they
stay there, sorted, and are searched.
"""

from pathlib import Path

from implementations._shared.cuda import lookup
from implementations.embedding import _limits

BACKEND = "torch"
FUSED = True
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"
EXPECT = (
    {"variant": "modulus", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("naive", "improved"), "case": "small", "options": {"hashing": "lookup"}, "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("modulus", "improved"): {"LOOKUPS": (8, 16, 32, 64, 128), "num_warps": (2, 4, 8)},
    "naive": {"SAMPLES": (4, 8, 16), "num_warps": (4, 8, 16)},
}

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    return _limits.skip(case, variant, device)


def prepare(case, variant, ids, tables, offsets, known=None):
    from implementations._shared.torch.lookup import prepared_for_kernels

    return prepared_for_kernels(variant, offsets, known)


def config(case, variant, device):
    return lookup.config(case, variant, device)


def fits(case, variant, device, config):
    return lookup.fits(variant, config)


def launches(case, variant, device, config):
    return (lookup.launch(FILE, case, variant, config),)


def build(case, variant, device, config):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    import torch

    (described,) = launches(case, variant, device, config)
    run, shape = lookup.call(described, case, variant), case.size("M", "F", "D")

    def call(ids, tables, offsets, known=None, *prepared):
        y = torch.empty(shape, dtype=tables.dtype, device=tables.device)
        run(ids, tables, offsets, *prepared, y)
        return y

    return call
