"""splacc in CUDA C++ (cuda.cu, which describes the algorithms; _shared/cuda/gated_matmul.py, the launches): one launch, or a second before it
that copies rows which are no whole vectors, and lets the last tiles be shared. The backward modes are two_accumulators' (gated_backward.py)."""

from pathlib import Path

from implementations._shared.cuda import gated_backward, gated_matmul
from implementations._shared.cuda.gated_matmul import config, fits, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
FUSED = True
VARIANTS = {"two_accumulators": (), "two_launches": ()}
BACKWARD = {"two_accumulators": ("product", "dz")}
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
    {"variant": "two_launches", "case": "large", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0,R2UR<=16"},
    {"variant": "two_accumulators", "case": "batch", "precision": "tf32", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_accumulators", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=8,waits_in_groups=0"},
    {"variant": "two_accumulators", "case": ("token", "batch"), "dtype": "bfloat16", "mode": "backward", "arch": "sm_80",
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_accumulators", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": "sm_100a", "expect": "spills=0,tensor_core>=1"},
    # two blocks a multiprocessor leave 128 registers, and ptxas keeps seven words of indices elsewhere there, none on Hopper
    {"variant": "two_accumulators", "case": "token", "dtype": "bfloat16", "mode": "backward", "arch": "sm_100a",
     "expect": "spills<=14,tensor_core>=1"},
    # the blocks of a cluster share K
    {"variant": "two_accumulators", "case": "odd", "dtype": "float32", "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("two_accumulators", "two_launches"): {
        "KERNEL": ("tensor", "few_rows", "warpgroup", "split", "turned", "simt"),
        "BLOCK_M": (16, 32, 64, 80, 96, 112, 128, 192),
        "BLOCK_N": (16, 32, 64, 128, 192, 256), "num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), "CLUSTER": (1, 2, 4, 8),
    },
    "two_accumulators": {
        "SCHEDULE": ("tiles", "strips"),
        # those of the products of mode=backward: of both by warpgroups, of few rows, or of dx and dW (layer_backward.py)
        "both_BLOCK_M": (128, 192), "both_BLOCK_N": (128, 192, 256), "both_num_stages": (2, 3, 4), "both_CLUSTER": (1, 2),
        "both_SCHEDULE": ("tiles", "stream_k"),
        "few_BLOCK_M": (16, 32), "few_BLOCK_N": (16, 32, 64), "few_num_stages": (1, 2, 3, 4),
        "dx_KERNEL": ("tensor", "warpgroup", "simt"), "dx_BLOCK_M": (16, 32, 64, 128), "dx_BLOCK_N": (64, 128, 256),
        "dx_num_stages": (2, 3, 4, 5, 6), "dx_CLUSTER": (1, 2, 4, 8),
        "dW_KERNEL": ("tensor", "simt"), "dW_BLOCK_M": (16, 64, 128), "dW_BLOCK_N": (64, 128, 256), "dW_num_stages": (2, 3, 4),
        "dW_CLUSTER": (1,),
    },
    "two_launches": {"SCHEDULE": ("tiles", "strips", "stream_k")},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
BACKWARD_FILE = Path(__file__).with_name("cuda_backward.cu")


def prepare(case, variant, A, B):
    """B with K contiguous, or in rows of whole vectors, where the products want it so, else nothing."""
    return gated_matmul.prepared(case, variant, B)


def launches(case, variant, device, chosen):
    if case.mode != "forward":
        return gated_backward.launches(BACKWARD_FILE, case, device, chosen, bias=False)
    return gated_matmul.launches(FILE, case, variant, device, chosen, dtypes=(case.dtype,))


def build(case, variant, device, chosen):
    """call(A (M, K), B, then what `prepare` made) → (M, N)."""
    if case.mode != "forward":
        return gated_backward.build(BACKWARD_FILE, case, device, chosen, bias=False)
    return gated_matmul.call(case, variant, device, launches(case, variant, device, chosen), 2)
