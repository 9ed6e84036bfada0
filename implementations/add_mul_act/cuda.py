"""add_mul_act in CUDA C++ (cuda.cu): 16 bytes a load, one launch. `in_place` writes y where x was, with the same program.

The backward modes are one launch or two behind it (_cuda_backward.py).
"""

from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import elementwise
from implementations._shared.cuda.launch import unsupported
from implementations.add_mul_act import _cuda_backward as backward

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": (), "in_place": ()}
BACKWARD = {"default": ("bias", "value")}  # relu sees the sign of y, which is that of the stored sum
IN_PLACE = {"in_place": ("x",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("default", "in_place"), "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
    {"variant": "default", "case": ("large", "tall"), "dtype": ("bfloat16", "float32"), "mode": "backward",
     "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0,LDG.128>=4,STG.128>=4"},
)  # fmt: skip
TUNABLES = {
    ("default", "in_place"): {"UNROLL": (1, 2, 4), "num_warps": (1, 2, 4, 8)},
    "default": {  # those of mode=backward
        "gradient_UNROLL": (1, 2, 3, 4, 8), "gradient_LANES": (4, 8, 16, 32, 256), "gradient_BLOCKS": (1, 2, 3, 4, 6, 8),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    return unsupported(device)


def config(case, variant, device):
    """The tunables; in the backward modes they are those of the gradient's launch."""
    return (_forward_config if case.mode == "forward" else backward.config)(case, device)


def fits(case, variant, device, config):
    return backward.fits(case, config) if case.mode != "forward" else elementwise.fits(config)


def launches(case, variant, device, config):
    """One launch, in mode=backward those of _cuda_backward.py, in forward_backward both."""
    if case.mode == "forward":
        return (_forward_launch(case, config),)
    behind = backward.launches(case, device, config)
    return behind if case.mode == "backward" else (_forward_launch(case, _forward_config(case, device)), *behind)


def _forward_config(case, device):
    return elementwise.config(case, device, inputs=2)


def _forward_launch(case, config):
    arguments, dtypes = [case.options["activation"].upper()], (case.dtype,) * 5
    return elementwise.launch(FILE, "add_mul_act", case, config, arguments, dtypes)


def build(case, variant, device, config):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N); x itself where `in_place`."""
    chosen = config if case.mode == "forward" else _forward_config(case, device)
    described = _forward_launch(case, chosen)
    if variant != "in_place":
        call = described.returning({4: case.size("M", "N")})
        return call if case.mode == "forward" else chained(backward.build(case, device, config, call))
    launch, sizes = described.bind(), described.sizes

    def call_in_place(x, z, multiplier, b):
        launch(x, z, multiplier, b, x, *sizes)
        return x

    return call_in_place
