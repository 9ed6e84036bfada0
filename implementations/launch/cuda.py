"""launch in CUDA C++ (cuda.cu): 16 bytes a thread, compiled by NVRTC and launched through cuda-core."""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Plan, instance

BACKEND = "torch"
VARIANTS = {"default": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
BLOCK = 256


def skip(case, variant, device):
    return None if device.type == "cuda" else "needs an NVIDIA GPU"


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case).program]


def plan(case):
    grid = -(-case.sizes["N"] * case.itemsize // (16 * BLOCK))
    return Plan(instance(FILE, "copy", TYPES[case.dtype]), grid, BLOCK)


def build(case, variant, device):
    import torch

    launch, N = plan(case).bind(), case.sizes["N"]

    def call(x):
        y = torch.empty_like(x)
        launch(x, y, N)
        return y

    return call
