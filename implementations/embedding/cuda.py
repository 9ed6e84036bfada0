"""embedding in CUDA C++ (lookup.cuh describes the algorithms): hashing and gather in one launch in every variant.

modulus: the remainder. naive: the known values move to the device in every call and are compared one by one. improved: they
stay there, sorted, and are searched. deterministic, atomic, in the backward modes: the gradient of the tables in one order, or by
atomic additions (_cuda_backward.py).
"""

from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import lookup
from implementations.embedding import _cuda_backward as backward
from implementations.embedding import _limits

BACKEND = "torch"
FUSED = True
VARIANTS = {"modulus": (), "naive": (), "improved": (), "deterministic": (), "atomic": ()}
BACKWARD = {"deterministic": (), "atomic": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": "modulus", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("naive", "improved"), "case": "small", "options": {"hashing": "lookup"}, "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
    {"variant": ("deterministic", "atomic"), "case": ("small", "main", "large", "large_wide"), "dtype": ("float32", "bfloat16"), "mode": "backward",
     "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("modulus", "improved"): {"LOOKUPS": (8, 16, 32, 56, 64, 112, 128), "num_warps": (2, 4, 8)},
    "naive": {"SAMPLES": (4, 8, 16), "num_warps": (4, 8, 16)},
    ("deterministic", "atomic"): {"CHUNK": (128, 256, 512, 1024, 2048), "num_warps": (2, 4, 8, 16), "AHEAD": (2, 4, 8)},
    "deterministic": {
        "SORT": ("own", "cluster", "radix"),
        "CLUSTER": (1, 2, 4, 8),
        "SORTERS": (256, 512, 1024),
        "PART": (1024, 2048, 4096, 8192, 16384, 32768),
    },
}

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if variant not in BACKWARD:
        return _limits.skip(case, variant, device)
    if case.mode == "forward":
        return f"{variant} is for backward modes: modulus and improved are its forward pass"
    return backward.skip(case, device)


def prepare(case, variant, ids, tables, offsets, known=None):
    from implementations._shared.torch.lookup import prepared_for_kernels

    return prepared_for_kernels(backward.hashing(case) if variant in BACKWARD else variant, offsets, known)


def config(case, variant, device):
    return backward.config(case, variant, device) if variant in BACKWARD else lookup.config(case, variant, device)


def fits(case, variant, device, config):
    return backward.fits(case, variant, device, config) if variant in BACKWARD else lookup.fits(variant, config)


def launches(case, variant, device, config):
    """The one launch, in mode=backward those of the gradient, in mode=forward_backward all of them."""
    if variant not in BACKWARD:
        return (lookup.launch(FILE, case, variant, config),)
    behind = backward.launches(case, variant, device, config)
    return behind if case.mode == "backward" else (_forward_launch(case, device), *behind)


def _forward_launch(case, device):
    """That of the backward modes."""
    hashing = backward.hashing(case)
    return lookup.launch(FILE, case, hashing, lookup.config(case, hashing, device))


def build(case, variant, device, config):
    """call(ids (M, F), tables, offsets, …) → (M, F, D); for the gradient nothing is kept but the inputs."""
    if variant not in BACKWARD:
        return _forward(case, variant, *launches(case, variant, device, config))
    call = _forward(case, backward.hashing(case), _forward_launch(case, device))
    gradient = backward.gradient(case, variant, device, config)

    def forward(ids, tables, offsets, known=None, *prepared):
        keys, positions = prepared or (0, 0)
        return call(ids, tables, offsets, known, *prepared), (ids, offsets, keys, positions, tables)

    return forward, chained(lambda residuals, dy: gradient(*residuals, dy))


def _forward(case, hashing, described):
    run = lookup.call(described, case, hashing)
    return lambda ids, tables, offsets, known=None, *prepared: run(ids, tables, offsets, *prepared)
