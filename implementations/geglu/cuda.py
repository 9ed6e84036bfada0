"""geglu in CUDA C++ (cuda.cu, which describes the algorithms; _shared/cuda/gated_matmul.py, the launches): one launch, or a second before it
that copies rows which are no whole vectors, and lets the last tiles be shared. The backward modes are two_accumulators' (gated_backward.py)."""

from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import gated_backward, gated_matmul
from implementations._shared.cuda.gated_matmul import EXPECT, TUNABLES, config, fits, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
FUSED = True
VARIANTS = {"two_accumulators": (), "two_launches": ()}
BACKWARD = {"two_accumulators": ("bias", "dz")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"

FILE = Path(__file__).with_suffix(".cu")
BACKWARD_FILE = Path(__file__).with_name("cuda_backward.cu")


def prepare(case, variant, x, W, b):
    """W with K contiguous, or in rows of whole vectors, where the products want it so, else nothing."""
    return gated_matmul.prepared(case, variant, W)


def launches(case, variant, device, chosen):
    if case.mode != "forward":
        return gated_backward.launches(BACKWARD_FILE, case, device, chosen, bias=True)
    arguments = [case.options["activation"].upper()]
    return gated_matmul.launches(FILE, case, variant, device, chosen, arguments, dtypes=(case.dtype, case.dtype))


def build(case, variant, device, chosen):
    """call(x (M, K), W, b (2N,), then what `prepare` made) → (M, N)."""
    if case.mode != "forward":
        return chained(gated_backward.build(BACKWARD_FILE, case, device, chosen, bias=True))
    return chained(gated_matmul.call(case, variant, device, launches(case, variant, device, chosen), 3))
