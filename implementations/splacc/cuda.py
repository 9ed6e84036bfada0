"""splacc in CUDA C++ (cuda.cu, which describes the algorithms): one launch."""

from pathlib import Path

from implementations._shared.cuda import matmul
from implementations._shared.cuda.launch import unsupported

BACKEND = "torch"
VARIANTS = {"two_accumulators": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    return unsupported(device)


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """Chooses the kernel, its tile and its grid from the sizes and the device."""
    return matmul.plan(FILE, variant, case, device, parts=2, tiles=matmul.TENSOR_TILES + matmul.WARPGROUP_TILES)


def build(case, variant, device):
    """call(A (M, K), B) → (M, N)."""
    M, K, N = case.size("M", "K", "N")
    launch = plan(case, variant, device).bind()

    def call(A, B):
        y = A.new_empty((M, N))
        launch(A, B, y, M, K, N)
        return y

    return call
