"""splacc in CUDA C++ (cuda.cu, which describes the algorithms; _shared/cuda/gated_matmul.py, the launches): one launch, or a second before it
that copies rows which are no whole vectors, and lets the last tiles be shared."""

from pathlib import Path

from implementations._shared.cuda import gated_matmul
from implementations._shared.cuda.gated_matmul import config, fits, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
FUSED = True
VARIANTS = {"two_accumulators": (), "two_launches": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": "two_accumulators", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_accumulators", "case": "token", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=16"},
    {"variant": "two_accumulators", "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0,STG.128>=4"},
    {"variant": "two_accumulators", "case": "batch", "precision": "tf32", "arch": "sm_90a",
     "expect": "spills=0,HGMMA=4,waits_in_groups=0"},
    {"variant": "two_launches", "case": "large", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": "two_accumulators", "case": "batch", "precision": "tf32", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    # the blocks of a cluster share K
    {"variant": "two_accumulators", "case": "odd", "dtype": "float32", "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("two_accumulators", "two_launches"): {
        "KERNEL": ("tensor", "few_rows", "warpgroup", "split", "simt"), "BLOCK_M": (16, 32, 64, 128, 192),
        "BLOCK_N": (16, 32, 64, 128, 192, 256), "num_stages": (1, 2, 3, 4, 5, 6), "CLUSTER": (1, 2, 4, 8),
    },
    "two_accumulators": {"SCHEDULE": ("tiles", "strips")}, "two_launches": {"SCHEDULE": ("tiles", "strips", "stream_k")},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def prepare(case, variant, A, B):
    """B with K contiguous, or in rows of whole vectors, where the products want it so, else nothing."""
    return gated_matmul.prepared(case, variant, B)


def launches(case, variant, device, chosen):
    return gated_matmul.launches(FILE, case, variant, device, chosen, dtypes=(case.dtype,))


def build(case, variant, device, chosen):
    """call(A (M, K), B, then what `prepare` made) → (M, N)."""
    return gated_matmul.call(case, variant, launches(case, variant, device, chosen), 2)
