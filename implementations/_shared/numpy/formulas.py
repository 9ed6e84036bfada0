"""What the formulas of several kernels share, in float64 NumPy; `r` names the rounding points (fusebench/parity/rounding.py)."""

import math

import numpy as np
from scipy.special import erf

# The erf inside GELU: CUDA's erff is off by 2 units in the last place, but Torch's GELU on CPUs with AVX-512 by 12 spacings
# where erf is near 1 (2.13, largest of 2 million points from -6 to 6; its torch.erf alone by half a spacing).
ERF_SPACINGS = 12.0
# XLA's tanh on a CPU is off by up to 4.9 (jaxlib 0.10.2, 2 million points from -9 to 9): in a slope, where 1 - tanh² cancels, that shows.
TANH_SPACINGS = 5.0
ACTIVATIONS = ("none", "relu", "sigmoid", "tanh", "gelu_tanh", "gelu_erf", "silu")


def _sigmoid(z, step, r):
    with np.errstate(over="ignore"):
        return step(r.function(1 / step(1 + step(r.function(np.exp(-z))))))


def _erf(x, r):
    """erf, off by as much near 0 as near 1, because that of GELU in Torch on a CPU is 1 less a polynomial: all numbers from 2 to 4 have one
    spacing, 4 times that of those below 1."""
    return r.function(3 + erf(x), ERF_SPACINGS / 4) - 3


def activate(name, z, r):
    """The activation `name` of z. `gelu_tanh` is Flax's default GELU, `gelu_erf` Torch's. relu keeps NaN.

    Its steps, constants included, have the point `activation`: XLA on the CPU rounds each of them to the storage dtype.
    """

    def step(value):
        return r.round("activation", value)

    if name == "none":
        return z
    if name == "relu":
        return np.where(z < 0, 0.0, z)
    if name == "sigmoid":
        return _sigmoid(z, step, r)
    if name == "tanh":
        return step(r.function(np.tanh(z)))
    if name == "silu":
        return z * _sigmoid(z, step, r)
    if name == "gelu_tanh":
        cube = step(z * step(z * z))
        inner = step(step(math.sqrt(2 / math.pi)) * step(z + step(step(0.044715) * cube)))
        return z * step(0.5 * step(1 + step(r.function(np.tanh(inner)))))
    if name == "gelu_erf":
        return step(0.5 * z) * step(1 + step(_erf(step(step(math.sqrt(0.5)) * z), r)))
    raise ValueError(f"activation {name!r}: expected one of {', '.join(ACTIVATIONS)}")


def pulled_back(name, z, dy, r, size=None):
    """dy times the derivative of the activation `name` at z, with the same point, in the order in which autodiff multiplies; z (…, N)
    is a sum of terms of that `size`, by default as large as its row is. Sigmoid and tanh have the point `value` as well, of programs
    that take the slope from the result as it was stored."""

    def step(value):
        return r.round("activation", value)

    if name == "none":
        return dy
    if name == "relu":
        return dy * r.positive(z, np.sqrt((z * z).mean(axis=-1, keepdims=True)) if size is None else size)
    if name == "sigmoid":
        s = r.narrow("value", _sigmoid(z, step, r))
        return step(dy * s) * step(1 - s)
    if name == "tanh":
        t = r.narrow("value", step(r.function(np.tanh(z), TANH_SPACINGS)))
        return dy * step(1 - step(t * t))
    if name == "silu":
        s = _sigmoid(z, step, r)
        return step(dy * s) + step(step(step(dy * z) * s) * step(1 - s))
    if name == "gelu_tanh":
        scale, cubic, square = step(math.sqrt(2 / math.pi)), step(0.044715), step(z * z)
        t = step(r.function(np.tanh(step(scale * step(z + step(cubic * step(z * square))))), TANH_SPACINGS))
        half = step(0.5 * step(dy * z))
        # JAX takes half + half * t times 1 - t, which errs elsewhere than half times 1 - t²: every program is owed either
        apart = step(step(half + step(half * t)) * step(1 - t)) - (half + half * t) * (1 - t)
        slope = step(half * step(1 - step(t * t))) + apart
        inner = step(scale * slope)
        return step(step(dy * step(0.5 * step(1 + t))) + inner) + step(step(cubic * inner) * step(3 * square))
    if name == "gelu_erf":
        below = step(0.5 * step(1 + step(_erf(step(math.sqrt(0.5) * z), r))))
        density = step(step(r.function(np.exp(step(-0.5 * step(z * z))))) * (1 / math.sqrt(2 * math.pi)))
        return step(dy * below) + step(step(dy * z) * density)
    raise ValueError(f"activation {name!r}: expected one of {', '.join(ACTIVATIONS)}")


PRODUCTS = {
    "forward": 1,
    "backward": 2,
    "forward_backward": 3,
}  # of a layer, by mode: x @ W; dz @ Wᵀ and xᵀ @ dz; all of them


def layer_elements(case, x, W, b, y):
    """Elements that a layer of so many of each has to move: x, W and b read, y written; backward x, W and dy read, dx, dW and db written;
    both, x, W, b and dy read, y, dx, dW and db written."""
    return {"forward": x + W + b + y, "backward": 2 * x + 2 * W + b + y, "forward_backward": 2 * (x + W + b + y)}[
        case.mode
    ]


def linear_gradients(case, r, x, W, dz):
    """(dx, dW, db) of x (M, K) @ W + b, W as the case stores it, where dz (M, N) is the gradient by its result. The latter two sum
    over all rows."""
    if case.options["w_layout"] == "kn":
        return r.dot(dz, W.T), r.dot(x.T, dz), r.sum(dz, axis=0)
    return r.dot(dz, W), r.dot(dz.T, x), r.sum(dz, axis=0)


def linear(case, x, W, b, r, after=lambda product: product):
    """x (M, K) @ W (K, N) + b (N,), with the points `product` and `bias`; `after` is what a formula does to the product.

    In IEEE float32 b is one more term of the sum: some libraries begin with it, and it may be larger than all the rest.
    """
    if case.dtype == "float32" and case.precision == "ieee":
        x, W, b = np.column_stack([x, np.ones(len(x))]), np.vstack([W, b]), 0.0
    return r.round("bias", r.round("product", after(r.dot(x, W))) + b)


def adapted(case, r, x, scale, W, b, A, B):
    """(z, x @ A): z = x @ W + b + scale * (x @ A) @ B, a linear layer with a low-rank adapter, W as the case stores it.

    Points: `product`, `bias`, `xa`, `xab`, `scaled` and `sum` as Torch's operators round them; a fused kernel scales x @ A instead,
    rounds that for the tensor cores (`scaled_xa`), and adds its product with B to x @ W.
    """
    xa = r.round("xa", r.dot(x, A))
    # what a scale of 0 leaves is multiplied by it again
    adapter = r.round("xab", r.dot(r.round("scaled_xa", scale * xa) / np.where(scale == 0, 1.0, scale), B))
    straight = linear(case, x, W if case.options["w_layout"] == "kn" else W.T, b, r)
    return r.round("sum", straight + r.round("scaled", scale * adapter)), xa


def adapted_gradients(case, r, x, scale, W, A, B, xa, dz):
    """(dx, dW, db, dA, dB) of `adapted`, where dz (M, N) is the gradient by z:

        dx = dz @ Wᵀ + scale * dz @ Bᵀ @ Aᵀ        dA = scale * xᵀ @ dz @ Bᵀ        dB = scale * (x @ A)ᵀ @ dz

    Points: `dscaled`, `dxa`, and the two shares of dx, `straight` and `through`.
    """
    straight, dW, db = linear_gradients(case, r, x, W, dz)
    dscaled = r.round("dscaled", scale * dz)
    dxa = r.round("dxa", r.dot(dscaled, B.T))
    through = r.round("through", r.dot(dxa, A.T))
    return r.compute(r.round("straight", straight) + through), dW, db, r.dot(x.T, dxa), r.dot(xa.T, dscaled)


def dot(case, r, x, W):
    """x (M, K) @ W as the case stores it, (K, N) or (N, K)."""
    return r.dot(x, W if case.options["w_layout"] == "kn" else W.T)


def product(case, r, x, W, *_):
    """(x @ W,), the part of a layer that a library multiplies, as a formula of its own."""
    return (r.compute(dot(case, r, x, W)),)


def softmax(scores, visible, r):
    """Softmax over the last axis of `scores` where `visible` (of the same shape, or of the last axis alone), 0 elsewhere.

    What is hidden, NaN or not, reaches nothing; a row that sees nothing is 0. As in Torch and JAX a visible NaN or +inf, or
    nothing but -inf, makes what the row sees NaN. Points: `shifted`, `exponentials`, `total`, `inverse`.
    """
    seen = np.where(visible, scores, -np.inf)
    shifted = r.round("shifted", seen - seen.max(axis=-1, keepdims=True))  # NaN in all of a row that sees nothing
    exponentials = r.round("exponentials", r.function(np.exp(shifted)))
    total = r.round("total", r.sum(exponentials, axis=-1, keepdims=True))
    inverse = r.round("inverse", r.function(1 / total))
    return np.where(visible, r.compute(exponentials * inverse), 0.0)


def beside(value, array):
    """The numbers of `array` as floats where `value` is, on a GPU perhaps: a mask that is made of them is made there, not sent there."""
    shape = (1,) * (value.ndim - np.ndim(array)) + np.shape(array)
    return np.where(False, value[tuple(slice(0, length) for length in shape)], array)


def attention(q, k, v, n_padd, rows, r):
    """softmax(q kᵀ / √D) v with q (…, M, D), k and v (…, T, D): token j is visible to token i of `rows` (M,) iff
    n_padd <= j <= i.

    n_padd is broadcast to (…, 1, 1). Padding of k and v, NaN or not, reaches nothing. Points: `query` of programs that scale q
    instead of the scores, `scores`, `scaled`, those of softmax, `probabilities`.
    """
    seen, D = int(rows.max(initial=-1)) + 1, k.shape[-1]  # no row sees a later token
    k, v, n_padd = k[..., :seen, :], v[..., :seen, :], beside(q, n_padd)
    i, j = beside(q, rows[:, None]), np.arange(seen)
    kept = n_padd <= j[:, None]
    k, v = np.where(kept, k, 0.0), np.where(kept, v, 0.0)
    q = r.narrow("query", q * (1 / math.sqrt(D))) * math.sqrt(D)
    scores = r.round("scores", r.dot(q, k.swapaxes(-1, -2)))
    scaled = r.round("scaled", scores * (1 / math.sqrt(D)))
    probabilities = r.round("probabilities", softmax(scaled, (n_padd <= j) & (j <= i), r))
    return r.dot(probabilities, v)


def attention_gradients(q, k, v, n_padd, dy, r):
    """(dq, dk, dv) of `attention` of all T rows, 0 for tokens of padding. Points: those of `attention`, `dprobabilities`, `dscaled`,
    `dscores`, and `output` of programs that sum dy * y, as it was stored, instead of dprobabilities * probabilities."""
    T, D = k.shape[-2:]
    i, j, n_padd = beside(q, np.arange(T)[:, None]), np.arange(T), beside(q, n_padd)
    kept, visible = n_padd <= i, (n_padd <= j) & (j <= i)
    q, k, v, dy = (np.where(kept, a, 0.0) for a in (q, k, v, dy))
    scale = 1 / math.sqrt(D)
    scaled = r.round("scaled", r.round("scores", r.dot(q, k.swapaxes(-1, -2))) * scale)
    probabilities = softmax(scaled, visible, r)
    # they may come from the logarithm of the row's sum, a float32: what that lost is in all of the row
    most = probabilities.max(axis=-1, keepdims=True)
    highest = np.where(kept, np.where(visible, scaled, -np.inf).max(axis=-1, keepdims=True), 0.0)
    lse = highest - r.function(np.log(np.where(most > 0, most, 1.0)))
    whole, probabilities = probabilities, r.round("probabilities", probabilities * (1 + (lse - r.compute(lse))))
    behind = r.round("dprobabilities", r.dot(dy, v.swapaxes(-1, -2)))
    # the sum of probabilities * behind is that of dy * y as well, which programs take from y as it was computed, and perhaps stored: what
    # that lost is in it. Where a token sees itself alone both are behind, and what they lost is all that is left
    y, computed = probabilities @ v, r.narrow("output", r.dot(probabilities, v))
    lost = r.sum(r.compute(dy * computed), axis=-1, keepdims=True) - (dy * y).sum(axis=-1, keepdims=True)
    inner = r.sum(r.compute(probabilities * behind), axis=-1, keepdims=True) + lost
    # y has not lost what the logarithm did, nor has the inner of a program that takes it. If two tokens share a row and the value of one is
    # 0, what is left of its dscaled depends on which inner it was
    inner = r.either(inner, inner + ((whole - probabilities) * behind).sum(axis=-1, keepdims=True))
    dscaled = r.round("dscaled", probabilities * r.compute(behind - inner))
    dscores = r.round("dscores", dscaled * scale)
    dk, dv = (r.dot(a.swapaxes(-1, -2), b) for a, b in ((dscores, q), (probabilities, dy)))
    return r.dot(dscores, k), dk, dv
