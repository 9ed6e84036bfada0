"""Device functions of the derivatives of activations."""

import triton
import triton.language as tl

from implementations._shared.triton.elementwise import tanh


@triton.jit
def slope(z, ACTIVATION: tl.constexpr):
    """The derivative of the activation of float32 z. That of tanh GELU is p + z p (1 - p) 2u' with p = sigmoid(2u)."""
    s = tl.full(z.shape, 1.0, tl.float32)
    if ACTIVATION == "gelu_tanh":
        p = tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
        s = p + z * p * (1 - p) * (1.5957691216057308 + 0.2140644488178379 * z * z)  # 3 × 0.044715 of it
    elif ACTIVATION == "gelu_erf":
        s = 0.5 * (1 + tl.erf(0.7071067811865476 * z)) + 0.3989422804014327 * z * tl.exp(-0.5 * z * z)
    elif ACTIVATION == "relu":
        s = tl.where(z > 0, 1.0, 0.0)
    elif ACTIVATION == "sigmoid":
        p = tl.sigmoid(z)
        s = p * (1 - p)
    elif ACTIVATION == "tanh":
        t = tanh(z)
        s = 1 - t * t
    elif ACTIVATION == "silu":
        p = tl.sigmoid(z)
        s = p + z * p * (1 - p)
    return s


@triton.jit
def slope_from_value(y, ACTIVATION: tl.constexpr):
    """The derivative of relu, sigmoid or tanh from their result, float32 y; of none 1."""
    s = tl.full(y.shape, 1.0, tl.float32)
    if ACTIVATION == "relu":
        s = tl.where(y > 0, 1.0, 0.0)
    elif ACTIVATION == "sigmoid":
        s = y * (1 - y)
    elif ACTIVATION == "tanh":
        s = 1 - y * y
    return s
