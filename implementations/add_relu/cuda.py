"""add_relu in CUDA C++ (cuda.cu): 16 bytes a load, one launch. `in_place` writes y where x was, with the same program."""

from pathlib import Path

from implementations._shared.cuda import elementwise
from implementations._shared.cuda.launch import unsupported

BACKEND = "torch"
VARIANTS = {"default": (), "in_place": ()}
IN_PLACE = {"in_place": ("x",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    return unsupported(device)


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, device).program]


def plan(case, device):
    return elementwise.plan(FILE, "add_relu", case, device)


def build(case, variant, device):
    """call(x (M, N), b (N,)) → (M, N); x itself where `in_place`."""
    import torch

    planned = plan(case, device)
    launch = planned.bind()
    in_place = variant == "in_place"

    def call(x, b):
        if not (x.is_contiguous() and b.is_contiguous()):
            raise ValueError("x and b must be contiguous")
        y = x if in_place else torch.empty_like(x)
        launch(x, b, y, *planned.sizes)
        return y

    return call
