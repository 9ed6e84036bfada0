"""add_relu in CUDA C++ (cuda.cu): 16 bytes a load, one launch. `in_place` writes y where x was, with the same program."""

from pathlib import Path

from fusebench.backends.cuda import Launch, Program
from implementations._cuda import TYPES
from implementations._pointwise import VECTOR_BYTES, rows, share

BACKEND = "torch"
VARIANTS = {"default": (), "in_place": ()}
IN_PLACE = {"in_place": ("x",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16)"
    return None


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    M, N = case.size("M", "N")
    unroll, block = share(M * N, case.itemsize, device.multiprocessors or 132)
    aligned = str(N * case.itemsize % VECTOR_BYTES == 0).lower()
    return [Program(FILE, f"add_relu<{TYPES[case.dtype]}, {aligned}, {unroll}, {block}>")]


def build(case, variant, device):
    """call(x (M, N), b (N,)) → (M, N); x itself where `in_place`."""
    import torch

    M, N = case.size("M", "N")
    unroll, block = share(M * N, case.itemsize, device.multiprocessors or 132)
    stride = block * VECTOR_BYTES // case.itemsize
    (program,) = programs(case, variant, device)
    launch, matrix = Launch(program, -(-M * N // (unroll * stride)), block), rows(M * N, N, stride)
    in_place = variant == "in_place"

    def call(x, b):
        if not (x.is_contiguous() and b.is_contiguous()):
            raise ValueError("x and b must be contiguous")
        y = x if in_place else torch.empty_like(x)
        launch(x, b, y, *matrix)
        return y

    return call
