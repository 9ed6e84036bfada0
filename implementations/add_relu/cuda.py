"""add_relu in CUDA C++ (cuda.cu): 16 bytes a load, one launch. `in_place` writes y where x was, with the same program."""

from pathlib import Path

from implementations._shared.cuda import elementwise
from implementations._shared.cuda.launch import unsupported

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": (), "in_place": ()}
IN_PLACE = {"in_place": ("x",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("default", "in_place"), "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {("default", "in_place"): {"UNROLL": (1, 2, 4), "num_warps": (1, 2, 4, 8)}}

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    return unsupported(device)


def config(case, variant, device):
    return elementwise.config(case, device)


def fits(case, variant, device, config):
    return elementwise.fits(config)


def launches(case, variant, device, config):
    return (elementwise.launch(FILE, "add_relu", case, config, dtypes=(case.dtype,) * 3),)


def build(case, variant, device, config):
    """call(x (M, N), b (N,)) → (M, N); x itself where `in_place`."""
    (described,) = launches(case, variant, device, config)
    if variant != "in_place":
        return described.returning({2: case.size("M", "N")})
    launch, sizes = described.bind(), described.sizes

    def call(x, b):
        launch(x, b, x, *sizes)
        return x

    return call
