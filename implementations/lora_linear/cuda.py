"""lora_linear in CUDA C++ (_shared/cuda/lora.cuh, which describes the algorithm).

fused           one launch: x @ A is summed beside x @ W
two_launches    x @ A first, then the layer with it
"""

from pathlib import Path

from implementations._shared.cuda import lora
from implementations._shared.cuda.lora import TUNABLES, config, fits, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
FUSED = True
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"
EXPECT = (
    {"variant": ("fused", "two_launches"), "case": "batch", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def launches(case, variant, device, chosen):
    return lora.launches(FILE, case, variant, device, chosen)


def build(case, variant, device, chosen):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    sizes = M, K, N, R = case.size("M", "K", "N", "R")
    *first, last = (launch.bind() for launch in launches(case, variant, device, chosen))

    def fused(x, scale, W, b, A, B):
        y = x.new_empty((M, N))
        last(x, scale, W, b, A, B, y, *sizes)
        return y

    def two_launches(x, scale, W, b, A, B):
        xa = x.new_empty((M, R))
        first[0](x, A, xa, M, K, R)
        y = x.new_empty((M, N))
        last(xa, x, scale, W, b, B, y, *sizes)
        return y

    return two_launches if first else fused
