"""embedding in CUDA C++ (lookup.cuh describes the algorithms): hashing and gather in one launch in every variant.

modulus: the remainder. naive: the known values move to the device in every call and are compared one by one. improved: they
stay there, sorted, and are searched. Their gradient is three launches (_cuda_backward.py).
"""

from pathlib import Path

from implementations._shared.cuda import lookup
from implementations.embedding import _cuda_backward as backward
from implementations.embedding import _limits

BACKEND = "torch"
FUSED = True
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
BACKWARD = {"modulus": (), "improved": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"
EXPECT = (
    {"variant": "modulus", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("naive", "improved"), "case": "small", "options": {"hashing": "lookup"}, "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
    {"variant": "modulus", "case": "small", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": "improved", "case": "small", "options": {"hashing": "lookup"}, "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("modulus", "improved"): {
        "LOOKUPS": (8, 16, 32, 64, 128),
        "CHUNK": (128, 256, 512, 1024, 2048),
        "num_warps": (2, 4, 8),
    },
    "naive": {"SAMPLES": (4, 8, 16), "num_warps": (4, 8, 16)},
}

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if reason := _limits.skip(case, variant, device):
        return reason
    return None if case.mode == "forward" else backward.skip(case, device)


def prepare(case, variant, ids, tables, offsets, known=None):
    from implementations._shared.torch.lookup import prepared_for_kernels

    return prepared_for_kernels(variant, offsets, known)


def config(case, variant, device):
    """The tunables; in the backward modes they are those of the gradient's launches."""
    return lookup.config(case, variant, device) if case.mode == "forward" else backward.config(case, device)


def fits(case, variant, device, config):
    return lookup.fits(variant, config) if case.mode == "forward" else backward.fits(case, config)


def launches(case, variant, device, config):
    """The one launch, in mode=backward the three of the gradient, in mode=forward_backward all of them."""
    if case.mode == "forward":
        return (lookup.launch(FILE, case, variant, config),)
    first = lookup.launch(FILE, case, variant, lookup.config(case, variant, device))
    behind = backward.launches(case, variant, device, config)
    return behind if case.mode == "backward" else (first, *behind)


def build(case, variant, device, config):
    """call(ids (M, F), tables, offsets, …) → (M, F, D); for the gradient nothing is kept but the inputs."""
    if case.mode == "forward":
        return _forward(case, variant, config)
    call = _forward(case, variant, lookup.config(case, variant, device))
    gradient = backward.gradient(case, variant, device, config)

    def forward(ids, tables, offsets, known=None, keys=0, positions=0):
        searched = () if variant == "modulus" else (known, keys, positions)
        return call(ids, tables, offsets, *searched), (ids, offsets, keys, positions, tables)

    return forward, lambda residuals, dy: gradient(*residuals, dy)


def _forward(case, variant, config):
    import torch

    shape = case.size("M", "F", "D")
    run = lookup.call(lookup.launch(FILE, case, variant, config), case, variant)

    def call(ids, tables, offsets, known=None, *prepared):
        y = torch.empty(shape, dtype=tables.dtype, device=tables.device)
        run(ids, tables, offsets, *prepared, y)
        return y

    return call
