"""lora_linear in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.triton.lora import kept_launches
from implementations.lora_linear import _triton_backward as backward
from implementations.lora_linear._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
BACKWARD = {"two_launches": ("xa", "scaled_xa", "sum", "dz", "dxa")}


def build(case, variant, device, chosen):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N), jitted."""
    if case.mode != "forward":
        return _differentiated(case, device, chosen)
    *first, last = launches(case, variant, device, chosen)
    M, N, R = case.size("M", "N", "R")

    def fused(x, scale, W, b, A, B):
        return run(last, x, scale, W, b, A, B, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    def two_launches(x, scale, W, b, A, B):
        xa = run(first[0], x, A, M, out=jax.ShapeDtypeStruct((M, R), x.dtype))
        return run(last, xa, x, scale, W, b, B, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    return jax.jit(two_launches if first else fused)


def _differentiated(case, device, chosen):
    """(forward, backward) of two launches each (_triton_backward.py), both jitted."""
    down, up = kept_launches(case, device)
    low, products = backward.launches(case, chosen)
    (M, N, R), linear = case.size("M", "N", "R"), case.options["activation"] == "none"

    def forward(x, scale, W, b, A, B):
        y = jax.ShapeDtypeStruct((M, N), x.dtype)
        xa = run(down, x, A, M, out=jax.ShapeDtypeStruct((M, R), x.dtype))
        *z, y = run(up, xa, x, scale, W, b, B, M, out=[y] if linear else [y, y])
        return y, (x, scale, W, A, B, xa, *z)

    def gradient(residuals, dy):
        x, scale, W, A, B, xa, *z = residuals
        like_dy, like_xa = (jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (dy, xa))
        if linear:
            dz, dxa = dy, run(low, dy, scale, B, M, out=like_xa)
        else:
            dz, dxa = run(low, *z, dy, scale, B, M, out=[like_dy, like_xa])
        shapes = x.shape, W.shape, (N,), A.shape, B.shape
        out = [jax.ShapeDtypeStruct(shape, dy.dtype) for shape in shapes]
        return tuple(run(products, dz, W, x, A, xa, scale, dxa, M, out=out))

    return jax.jit(forward), jax.jit(gradient)
