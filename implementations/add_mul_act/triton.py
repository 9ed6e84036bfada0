"""add_mul_act in Triton, one launch: _triton_kernels.py says how it works. `in_place` writes y where x was."""

import torch

from fusebench.launchers import chained
from implementations._shared.triton import elementwise
from implementations.add_mul_act import _triton_backward as backward
from implementations.add_mul_act._rows import slope_is_from_y
from implementations.add_mul_act._triton_kernels import INPUTS, TUNABLES, config, fits, forward_launch, launches  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": (), "in_place": ()}
BACKWARD = {"default": ("bias", "value")}  # relu sees the sign of y, which is that of the stored sum
IN_PLACE = {"in_place": ("x",)}
EXPECT = (
    {"variant": ("default", "in_place"), "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
    {"variant": "default", "case": "small", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    # several rows are whole vectors together
    {"variant": "default", "case": "tall", "dtype": ("bfloat16", "float32"), "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,LDG.128>=2,STG.128>=2"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N); x itself where `in_place`."""
    if case.mode != "forward":
        return chained(_differentiated(case, device, chosen))
    (launch,) = launches(case, variant, device, chosen)
    return _in_place(launch) if variant == "in_place" else _call(case, launch)


def _call(case, launch):
    M, N = case.size("M", "N")
    return launch.returning((M, N), count=M * N)


def _in_place(launch):
    run = launch.bind()

    def call(x, z, multiplier, b):
        if not (x.is_contiguous() and z.is_contiguous() and b.is_contiguous()):
            raise ValueError("x, z and b must be contiguous")
        run(x, z, multiplier, b, x.numel(), x)
        return x

    return call


def _differentiated(case, device, chosen):
    """(forward, backward) of two launches, or three (_triton_backward.py)."""
    call = _call(case, forward_launch(case, elementwise.config(case, device, INPUTS)))
    first, *more = (launch.bind() for launch in backward.launches(case, chosen))
    parts, from_y, M = backward.parts(case, chosen), slope_is_from_y(case), case.sizes["M"]

    def forward(x, z, multiplier, b):
        y = call(x, z, multiplier, b)
        return y, (y, y, multiplier, b) if from_y else (x, z, multiplier, b)

    def gradient(residuals, dy):
        dx, dz, db = torch.empty_like(dy), torch.empty_like(dy), dy.new_empty(dy.shape[1])
        sums = dy.new_empty(parts, dy.shape[1], dtype=torch.float32) if more else db
        first(*residuals, dy, M, dx, dz, sums)
        if more:
            more[0](sums, db)
        return dx, dz, db

    return forward, gradient
