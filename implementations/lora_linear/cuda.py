"""lora_linear in CUDA C++ (_shared/cuda/lora.cuh, which describes the algorithm; hopper/adapted.cuh).

fused           one launch: x @ A is summed beside x @ W
two_launches    x @ A first, then the layer with it, on Hopper by warpgroups, for which the first also copies rows of x that are no whole vectors
                of 16 bytes; in the backward modes lora_backward.cuh follows, in one launch where there are few rows
"""

from pathlib import Path

from implementations._shared.cuda import lora
from implementations._shared.cuda import lora_backward as backward
from implementations._shared.cuda.lora import skip  # noqa: F401 (part of the contract)

BACKEND = "torch"
FUSED = True
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
BACKWARD = {"two_launches": ("xa", "scaled_xa", "sum", "dz", "dxa")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("fused", "two_launches"), "case": "batch", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": "two_launches", "case": "rank16", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": "two_launches", "case": "token", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": "two_launches", "case": "token", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
TUNABLES = {
    "fused": {"BLOCK_M": (16, 64, 128), "BLOCK_N": (64, 128, 256), "num_stages": (2, 3, 4)},
    "two_launches": {
        "up_KERNEL": ("tensor", "few_rows", "warpgroup", "split", "simt"), "up_BLOCK_M": (16, 32, 64, 128, 192),
        "up_BLOCK_N": (16, 32, 64, 128, 192, 256), "up_num_stages": (1, 2, 3, 4, 5, 6), "up_CLUSTER": (1, 2, 4, 8), "up_SCHEDULE": ("tiles", "strips", "stream_k"),
        # those of mode=backward
        "KERNEL": ("tensor", "warpgroup", "simt", "whole"),
        "dx_BLOCK_M": (16, 64, 128), "dx_BLOCK_N": (64, 128, 256), "dx_num_stages": (2, 3, 4, 5, 6), "dx_CLUSTER": (1, 2),
        "dW_BLOCK_M": (16, 64, 128), "dW_BLOCK_N": (64, 128, 256), "dW_num_stages": (2, 3, 4, 5, 6), "dW_CLUSTER": (1, 2),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
BACKWARD_FILE = Path(__file__).with_name("cuda_backward.cu")


def prepare(case, variant, x, scale, W, b, A, B):
    """W and B in rows of whole vectors, where warpgroups want them so, else nothing."""
    return lora.prepared(case, W, B) if variant == "two_launches" else ()


def config(case, variant, device):
    return lora.config(case, variant, device) if case.mode == "forward" else backward.config(case, device)


def fits(case, variant, device, chosen):
    return lora.fits(case, variant, device, chosen) if case.mode == "forward" else backward.fits(case, device, chosen)


def launches(case, variant, device, chosen):
    if case.mode == "forward":
        return lora.launches(FILE, case, variant, device, chosen)
    behind = backward.launches(BACKWARD_FILE, case, device, chosen)
    return behind if case.mode == "backward" else (*backward.kept_launches(BACKWARD_FILE, case, device), *behind)


def build(case, variant, device, chosen):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N), then what `prepare` made) → (M, N)."""
    if case.mode != "forward":
        return backward.build(BACKWARD_FILE, case, device, chosen)
    described, sizes = launches(case, variant, device, chosen), case.size("M", "K", "N", "R")
    if variant == "two_launches":
        return lora.in_two_launches(case, *described)
    return described[0].returning({6: case.size("M", "N")}, sizes)
