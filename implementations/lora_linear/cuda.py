"""lora_linear in CUDA C++ (_shared/cuda/lora.cuh, which describes the algorithm; hopper/adapted.cuh).

fused           one launch: x @ A is summed beside x @ W; on Hopper by warpgroups, where rows are whole vectors (_fused.cuh)
two_launches    x @ A first, then the layer with it, on Hopper by warpgroups, for which the first also copies rows of x that are no whole vectors
                of 16 bytes; in the backward modes lora_backward.cuh follows, in one launch where there are few rows
"""

from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import lora
from implementations._shared.cuda import lora_backward as backward
from implementations._shared.cuda import lora_backward_choice as choice
from implementations._shared.cuda.launch import not_one_of
from implementations._shared.cuda.lora import skip  # noqa: F401 (part of the contract)
from implementations._shared.gpu import usual_kernel
from implementations.lora_linear import _cuda_fused

BACKEND = "torch"
FUSED = True
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
BACKWARD = {"two_launches": ("xa", "scaled_xa", "sum", "dz", "dxa")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("fused", "two_launches"), "case": "batch", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "fused", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=5,waits_in_groups=0,loop.R2UR=0,unset_registers=0"},
    # turned tiles, whose two loops over slabs have their descriptors in uniform registers
    {"variant": "two_launches", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=8,waits_in_groups=0,loop.R2UR=0,unset_registers=0"},
    {"variant": "two_launches", "case": "rank16", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    # by blocks that share K, and in whole tiles: a slab of 32 floats is four products
    {"variant": "two_launches", "case": ("batch", "rank16"), "precision": "tf32", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=4,waits_in_groups=0,loop.R2UR=0,unset_registers=0"},
    {"variant": "two_launches", "case": "batch", "precision": "tf32", "arch": ("sm_80", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": "token", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": ("token", "rank16"), "dtype": "float32", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": "two_launches", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": "two_launches", "case": "token", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
TUNABLES = {
    "fused": {
        "KERNEL": ("tensor", "warpgroup", "simt"), "BLOCK_M": (16, 64, 128), "BLOCK_N": (64, 128, 256), "num_stages": (2, 3, 4, 5, 6),
    },
    "two_launches": {
        "up_KERNEL": ("tensor", "few_rows", "warpgroup", "split", "turned", "simt"),
        "up_BLOCK_M": (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256), "up_BLOCK_N": (16, 32, 64, 128, 192, 256),
        "up_num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), "up_CLUSTER": (1, 2, 4, 8), "up_SCHEDULE": ("tiles", "strips", "stream_k"),
        # those of mode=backward
        "KERNEL": ("tensor", "warpgroup", "simt", "apart", "few", "whole"),
        "dx_BLOCK_M": (16, 32, 64, 128), "dx_BLOCK_N": (16, 32, 64, 128, 256), "dx_num_stages": (1, 2, 3, 4, 5, 6), "dx_CLUSTER": (1, 2, 4, 8),
        "dW_BLOCK_M": (16, 64, 128), "dW_BLOCK_N": (64, 128, 256), "dW_num_stages": (2, 3, 4, 5, 6), "dW_CLUSTER": (1, 2, 4),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
BACKWARD_FILE = Path(__file__).with_name("cuda_backward.cu")


def prepare(case, variant, x, scale, W, b, A, B):
    """W and B in rows of whole vectors, or turned for tf32, where warpgroups want them so, else nothing."""
    return lora.prepared(case, W, B) if variant == "two_launches" else ()


def config(case, variant, device):
    if case.mode != "forward":
        return choice.config(case, device)
    if variant == "two_launches":
        return lora.config(case, variant, device)
    return _cuda_fused.config(case, device) or {"KERNEL": usual_kernel(case)} | lora.config(case, variant, device)


def fits(case, variant, device, chosen):
    if case.mode != "forward":
        return choice.fits(case, device, chosen)
    if variant == "fused":
        if chosen["KERNEL"] == "warpgroup":
            return _cuda_fused.fits(case, device, chosen)
        if reason := not_one_of("KERNEL", chosen["KERNEL"], (usual_kernel(case), "warpgroup")):
            return reason
    return lora.fits(case, variant, device, chosen)


def launches(case, variant, device, chosen):
    if case.mode == "forward":
        if _is_by_warpgroups(variant, chosen):
            return (_cuda_fused.launch(FILE, case, device, chosen),)
        return lora.launches(FILE, case, variant, device, chosen)
    behind = backward.launches(BACKWARD_FILE, case, device, chosen)
    return behind if case.mode == "backward" else (*backward.kept_launches(BACKWARD_FILE, case, device), *behind)


def _is_by_warpgroups(variant, chosen):
    return variant == "fused" and chosen["KERNEL"] == "warpgroup"


def build(case, variant, device, chosen):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N), then what `prepare` made) → (M, N)."""
    if case.mode != "forward":
        return chained(backward.build(BACKWARD_FILE, case, device, chosen))
    if _is_by_warpgroups(variant, chosen):
        return _cuda_fused.build(FILE, case, device, chosen)
    described, sizes = launches(case, variant, device, chosen), case.size("M", "K", "N", "R")
    if variant == "two_launches":
        return chained(lora.in_two_launches(case, *described))
    return described[0].returning({6: case.size("M", "N")}, sizes)
