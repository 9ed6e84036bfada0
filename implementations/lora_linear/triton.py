"""lora_linear in Triton: _shared/triton/lora.py says how the kernels work.

fused: one launch. two_launches: x @ A first, then the layer with it.
"""

import torch

from implementations._shared.triton.lora import kept_launches
from implementations.lora_linear import _triton_backward as backward
from implementations.lora_linear._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
BACKWARD = {"two_launches": ("xa", "scaled_xa", "sum", "dz", "dxa")}
EXPECT = (
    {"variant": ("fused", "two_launches"), "case": "batch", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": ("fused", "two_launches"), "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    if case.mode != "forward":
        return _differentiated(case, device, chosen)
    *first, last = (launch.bind() for launch in launches(case, variant, device, chosen))
    M, N, R = case.size("M", "N", "R")

    def fused(x, scale, W, b, A, B):
        y = torch.empty((M, N), dtype=x.dtype, device=x.device)
        last(x, scale, W, b, A, B, M, y)
        return y

    def two_launches(x, scale, W, b, A, B):
        xa = torch.empty((M, R), dtype=x.dtype, device=x.device)
        first[0](x, A, M, xa)
        y = torch.empty((M, N), dtype=x.dtype, device=x.device)
        last(xa, x, scale, W, b, B, M, y)
        return y

    return two_launches if first else fused


def _differentiated(case, device, chosen):
    """(forward, backward) of two launches each (_triton_backward.py)."""
    down, up = (launch.bind() for launch in kept_launches(case, device))
    low, products = (launch.bind() for launch in backward.launches(case, chosen))
    (M, N, R), linear = case.size("M", "N", "R"), case.options["activation"] == "none"

    def forward(x, scale, W, b, A, B):
        xa, y = x.new_empty(M, R), x.new_empty(M, N)
        z = () if linear else (torch.empty_like(y),)
        down(x, A, M, xa)
        up(xa, x, scale, W, b, B, M, *z, y)
        return y, (x, scale, W, A, B, xa, *z)

    def gradient(residuals, dy):
        x, scale, W, A, B, xa, *z = residuals
        dz, dxa = dy if linear else torch.empty_like(dy), torch.empty_like(xa)
        dx, dW, db, dA, dB = (
            torch.empty_like(x),
            torch.empty_like(W),
            dy.new_empty(N),
            torch.empty_like(A),
            torch.empty_like(B),
        )
        if linear:
            low(dy, scale, B, M, dxa)
        else:
            low(*z, dy, scale, B, M, dz, dxa)
        products(dz, W, x, A, xa, scale, dxa, M, dx, dW, db, dA, dB)
        return dx, dW, db, dA, dB

    return forward, gradient
