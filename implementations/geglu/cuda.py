"""geglu in CUDA C++ (cuda.cu, which describes the algorithms): one launch."""

from pathlib import Path

from fusebench.backends.cuda import Launch
from implementations import _tile

BACKEND = "torch"
VARIANTS = {"two_accumulators": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16 and asynchronous copies)"
    return None


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """Chooses the kernel, its tile and its grid from the sizes and the device."""
    return _tile.plan(
        FILE,
        variant,
        case,
        device,
        arguments=[case.options["activation"].upper()],
        parts=2,
        tiles=_tile.TENSOR_TILES + _tile.WARPGROUP_TILES,
    )


def build(case, variant, device):
    """call(x (M, K), W, b (2N,)) → (M, N)."""
    M, K, N = case.size("M", "K", "N")
    planned = plan(case, variant, device)
    launch = Launch(planned.program, planned.grid, planned.block, planned.shared_memory, planned.boxes)

    def call(x, W, b):
        y = x.new_empty((M, N))
        launch(x, W, b, y, M, K, N)
        return y

    return call
