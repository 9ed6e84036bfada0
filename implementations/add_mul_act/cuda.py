"""add_mul_act in CUDA C++ (cuda.cu): 16 bytes a load, one launch. `in_place` writes y where x was, with the same program."""

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
    return elementwise.config(case, device, inputs=2)


def fits(case, variant, device, config):
    return elementwise.fits(config)


def launches(case, variant, device, config):
    arguments, dtypes = [case.options["activation"].upper()], (case.dtype,) * 5
    return (elementwise.launch(FILE, "add_mul_act", case, config, arguments, dtypes),)


def build(case, variant, device, config):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N); x itself where `in_place`."""
    (described,) = launches(case, variant, device, config)
    if variant != "in_place":
        return described.returning({4: case.size("M", "N")})
    launch, sizes = described.bind(), described.sizes

    def call(x, z, multiplier, b):
        launch(x, z, multiplier, b, x, *sizes)
        return x

    return call
