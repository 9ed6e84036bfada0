"""launch in CUDA C++ (cuda.cu): 16 bytes a thread, compiled by NVRTC and launched through cuda-core."""

from pathlib import Path

from fusebench.backends.cuda import Launch, Program
from implementations._cuda import TYPES

BACKEND = "torch"
VARIANTS = {"default": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
BLOCK = 256


def skip(case, variant, device):
    return None if device.type == "cuda" else "needs an NVIDIA GPU"


def programs(case, variant, device):
    return [Program(FILE, f"copy<{TYPES[case.dtype]}>")]


def build(case, variant, device):
    import torch

    N = case.sizes["N"]
    (program,) = programs(case, variant, device)
    launch = Launch(program, -(-N * case.itemsize // (16 * BLOCK)), BLOCK)

    def call(x):
        y = torch.empty_like(x)
        launch(x, y, N)
        return y

    return call
