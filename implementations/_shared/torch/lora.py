"""A linear layer with an adapter in Torch by the Triton kernels of _shared/triton: forward with what backward needs, and backward."""

import torch

from implementations._shared.triton import lora_backward as backward
from implementations._shared.triton.lora import kept_launches


def differentiated(case, device, chosen):
    """(forward, backward) of a layer, two launches each, or one backward; `chosen` is the config of lora_backward.py."""
    down, up = (launch.bind() for launch in kept_launches(case, device))
    *low, last = (launch.bind() for launch in backward.launches(case, chosen))
    (M, N, R), linear = case.size("M", "N", "R"), case.options["activation"] == "none"

    def forward(x, scale, W, b, A, B):
        xa, y = x.new_empty(M, R), x.new_empty(M, N)
        z = () if linear else (torch.empty_like(y),)
        down(x, A, M, xa)
        up(xa, x, scale, W, b, B, M, *z, y)
        return y, (x, scale, W, A, B, xa, *z)

    def gradient(residuals, dy):
        x, scale, W, A, B, xa, *z = residuals
        dx, dW, db, dA, dB = (
            torch.empty_like(x),
            torch.empty_like(W),
            dy.new_empty(N),
            torch.empty_like(A),
            torch.empty_like(B),
        )
        if not low:
            last(*z, dy, W, x, A, B, xa, scale, M, dx, dW, db, dA, dB)
            return dx, dW, db, dA, dB
        dz, dxa = dy if linear else torch.empty_like(dy), torch.empty_like(xa)
        if linear:
            low[0](dy, scale, B, M, dxa)
        else:
            low[0](*z, dy, scale, B, M, dz, dxa)
        last(dz, W, x, A, xa, scale, dxa, M, dx, dW, db, dA, dB)
        return dx, dW, db, dA, dB

    return forward, gradient
