"""interaction in CUDA C++: one launch in either form (interactions.cuh describes the algorithms), or for dots by warps that stay and
have samples on their way (`persistent`, _persistent.cuh); and one for the gradient (_cuda_backward.py)."""

from pathlib import Path

from implementations._shared.cuda import interactions
from implementations._shared.cuda.launch import unsupported
from implementations._shared.dlrm import pairs_skip
from implementations.interaction import _cuda_backward as backward
from implementations.interaction import _cuda_persistent as persistent
from implementations.interaction import _limits

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": (), "persistent": ()}
BACKWARD = {"default": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": "default", "case": "main", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "default", "case": "many_features", "dtype": "bfloat16", "mode": ("forward", "backward"), "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "default", "case": ("main", "many_features"), "dtype": "float32", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": "persistent", "case": "large", "dtype": "bfloat16", "arch": ("sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "default", "case": "main", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
# BLOCK_M: samples of a block, or rows of a sample's outer product; the others are of dots (interactions.py)
TUNABLES = {
    "default": {
        "BLOCK_M": (1, 2, 4, 8, 16, 32), "BLOCK_K": (16, 32, 64, 128, 256, 512), "BLOCK_F": (32, 64, 128, 256, 512), "num_warps": (1, 2, 4, 8),
    },
    "persistent": {"num_stages": (2, 3, 4, 6, 8), "num_warps": (4, 8)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if reason := unsupported(device) or pairs_skip(case) or _limits.skip(case, variant, device):
        return reason
    if variant == "persistent":
        return persistent.skip(case, device) if case.mode == "forward" else "is for mode=forward: default"
    return None if case.mode == "forward" else backward.skip(case, device)


def config(case, variant, device):
    """The tunables; in the backward modes they are those of the gradient's launch."""
    if variant == "persistent":
        return persistent.config(case, device)
    return (interactions.config if case.mode == "forward" else backward.config)(case, device)


def fits(case, variant, device, config):
    if variant == "persistent":
        return persistent.fits(case, device, config)
    return (interactions.fits if case.mode == "forward" else backward.fits)(case, device, config)


def launches(case, variant, device, config):
    """The one launch, in mode=forward_backward that and the one of the gradient."""
    if case.mode == "forward":
        return (_launch(case, variant, device, config),)
    first = interactions.launch(FILE, case, interactions.config(case, device))
    behind = backward.launch(case, config)
    return (behind,) if case.mode == "backward" else (first, behind)


def build(case, variant, device, config):
    """call(dense (M, D), sparse (M, F, D)) → y; the gradient needs no more than these."""
    if case.mode == "forward":
        return _forward(case, _launch(case, variant, device, config))
    first = interactions.launch(FILE, case, interactions.config(case, device))
    call, gradient = _forward(case, first), backward.gradient(case, config)
    return lambda dense, sparse: (call(dense, sparse), (dense, sparse)), gradient


def _launch(case, variant, device, config):
    return (
        persistent.launch(case, device, config) if variant == "persistent" else interactions.launch(FILE, case, config)
    )


def _forward(case, launch):
    M, F, D = case.size("M", "F", "D")
    width = D + F * (F + 1) // 2 if case.options["form"] == "dot" else ((F + 1) * D) ** 2
    return launch.returning({2: (M, width)})
