"""launch in CUDA C++ (cuda.cu): 16 bytes a thread, compiled by NVRTC and launched through cuda-core."""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": "default", "case": "floor", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {"default": {"num_warps": (1, 2, 4, 8, 16)}}

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    return None if device.type == "cuda" else "needs an NVIDIA GPU"


def config(case, variant, device):
    return {"num_warps": 8}


def fits(case, variant, device, config):
    return not_one_of("num_warps", config["num_warps"], range(1, 33))


def launches(case, variant, device, config):
    block, dtype = 32 * config["num_warps"], case.dtype
    grid = -(-case.sizes["N"] * case.itemsize // (16 * block))
    return (Launch(instance(FILE, "copy", TYPES[dtype]), grid, block, dtypes=(dtype, dtype)),)


def build(case, variant, device, config):
    (launch,), N = launches(case, variant, device, config), case.sizes["N"]
    return launch.returning({1: (N,)}, (N,))
