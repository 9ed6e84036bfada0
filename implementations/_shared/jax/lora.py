"""A linear layer with an adapter in JAX by the Triton kernels of _shared/triton: forward alone, or with what backward needs, and backward."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.triton import lora_backward as backward
from implementations._shared.triton.lora import kept_launches


def layer(case, *launches):
    """(x, scale, W, b, A, B) → y, by the launch of lora.py's `fused` or the two of `two_launches`."""
    *first, last = launches
    M, N, R = case.size("M", "N", "R")

    def fused(x, scale, W, b, A, B):
        return run(last, x, scale, W, b, A, B, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    def two_launches(x, scale, W, b, A, B):
        xa = run(first[0], x, A, M, out=jax.ShapeDtypeStruct((M, R), x.dtype))
        return run(last, xa, x, scale, W, b, B, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    return two_launches if first else fused


def differentiated(case, device, chosen):
    """(forward, backward) of a layer, two launches each, or one backward; `chosen` is the config of lora_backward.py."""
    down, up = kept_launches(case, device)
    *low, last = backward.launches(case, chosen)
    (M, N, R), linear = case.size("M", "N", "R"), case.options["activation"] == "none"

    def forward(x, scale, W, b, A, B):
        y = jax.ShapeDtypeStruct((M, N), x.dtype)
        xa = run(down, x, A, M, out=jax.ShapeDtypeStruct((M, R), x.dtype))
        *z, y = run(up, xa, x, scale, W, b, B, M, out=[y] if linear else [y, y])
        return y, (x, scale, W, A, B, xa, *z)

    def gradient(residuals, dy):
        x, scale, W, A, B, xa, *z = residuals
        shapes = x.shape, W.shape, (N,), A.shape, B.shape
        out = [jax.ShapeDtypeStruct(shape, dy.dtype) for shape in shapes]
        if not low:
            return tuple(run(last, *z, dy, W, x, A, B, xa, scale, M, out=out))
        like_dy, like_xa = (jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (dy, xa))
        if linear:
            dz, dxa = dy, run(low[0], dy, scale, B, M, out=like_xa)
        else:
            dz, dxa = run(low[0], *z, dy, scale, B, M, out=[like_dy, like_xa])
        return tuple(run(last, dz, W, x, A, xa, scale, dxa, M, out=out))

    return forward, gradient
