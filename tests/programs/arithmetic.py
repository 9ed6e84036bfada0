"""Float32 as programs do it: sums and products in several orders, what tensor cores leave out, storage, activations."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
from scipy.special import erf, expit

from fusebench.dtypes import numpy_dtype

SMALLEST = np.float32(2.0**-126)  # normal number of float32


def wide(a):
    return np.asarray(a).astype(np.float32)


def columns(case, W):
    """W as (K, N), whatever its layout."""
    return wide(W) if case.options["w_layout"] == "kn" else wide(W).T


def store(case, a):
    """An output: `a` in the storage dtype."""
    return np.asarray(a).astype(numpy_dtype(case.dtype))


def keep(case, a):
    """An intermediate that was stored on the way."""
    return wide(store(case, a))


def same(a):
    return a


def edit(a, at, value):
    """A copy with some of its elements changed."""
    a = np.array(a)
    a[at] = value
    return a


def given(run, place, change):
    """The program with the input at that place changed first, and then as it would be in the storage dtype."""

    def changed(case, *arrays):
        arrays = list(arrays)
        arrays[place] = store(case, change(wide(arrays[place])))
        return run(case, *arrays)

    return changed


def half(a):
    """By way of float16, which holds no more than 65504."""
    return wide(a.astype(np.float16))


def normed(a):
    """Divided by the largest of its row and multiplied by it again, in float32: NaN where a row is 0."""
    largest = np.abs(a).max(axis=-1, keepdims=True)
    return a / largest * largest


def first_again(run):
    """The program that returns its first outputs whatever it is called with later."""
    outputs = []

    def again(*inputs):
        outputs.append(run(*inputs))
        return outputs[0]

    return again


def flush(a):
    """Subnormals of float32 as zero, which fast code makes of them."""
    return np.where(np.abs(a) < SMALLEST, np.float32(0), wide(a))


# Sums over the last axis, which stays with length 1.


def pairwise(a):
    return a.sum(axis=-1, keepdims=True, dtype=np.float32)


def sequential(a):
    return np.cumsum(a, axis=-1, dtype=np.float32)[..., -1:]


def lanes(a, width=32):
    """Every 32nd element by one lane, then the lanes by halves, as a warp does it."""
    padded = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -a.shape[-1] % width)])
    partial_sums = sequential(padded.reshape(*a.shape[:-1], -1, width).swapaxes(-1, -2))[..., 0]
    while partial_sums.shape[-1] > 1:
        half = partial_sums.shape[-1] // 2
        partial_sums = partial_sums[..., :half] + partial_sums[..., half:]
    return partial_sums


def backwards(a):
    return sequential(a[..., ::-1])


def of_blocks(a, block=128):
    """Blocks in pairs, these one after the other."""
    return sequential(np.concatenate([pairwise(a[..., i : i + block]) for i in range(0, a.shape[-1], block)], axis=-1))


def in_halves(a):
    """Summed in float16 throughout."""
    return wide(np.cumsum(a.astype(np.float16), axis=-1, dtype=np.float16)[..., -1:])


# Products a (…, M, K) @ b (…, K, N) of float32.


def library(a, b):
    return a @ b


def rank_one(a, b):
    """One k after the other, product and sum rounded apart."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float32)
    for k in range(a.shape[-1]):
        total += a[..., k : k + 1] * b[..., k : k + 1, :]
    return total


def multiply_add(a, b):
    """One k after the other, rounded once a step."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float32)
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(a.shape[-1]):
        total = (total + a[..., k : k + 1] * b[..., k : k + 1, :]).astype(np.float32)
    return total


def blocked(a, b, block=32):
    """Blocks of K one after the other."""
    return sum((a[..., k : k + block] @ b[..., k : k + block, :] for k in range(block, a.shape[-1], block)),
               a[..., :block] @ b[..., :block, :])  # fmt: skip


def split_k(a, b, parts=4):
    """Parts of K apart, added at the end, the last first."""
    edges = np.linspace(0, a.shape[-1], parts + 1).astype(int)
    return sum(a[..., i:j] @ b[..., i:j, :] for i, j in zip(edges[-2::-1], edges[:0:-1], strict=True))


def four_accumulators(a, b):
    """Every fourth k in one accumulator, rounded once a step, the four in pairs at the end."""
    sums = [multiply_add(a[..., i::4], b[..., i::4, :]) for i in range(min(4, a.shape[-1]))]
    return sum(sums[::2], np.float32(0)) + sum(sums[1::2], np.float32(0))


def compensated(a, b):
    """Kahan's sum: what an addition lost is added to the next term; one that is infinite has lost nothing."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float32)
    lost = np.zeros_like(total)
    for k in range(a.shape[-1]):
        term = a[..., k : k + 1] * b[..., k : k + 1, :] - lost
        raised = total + term
        total, lost = raised, np.where(np.isfinite(raised), (raised - total) - term, 0)
    return total


def halving(a, b):
    """K by halves, down to one."""
    K = a.shape[-1]
    if K == 1:
        return a * b
    return halving(a[..., : K // 2], b[..., : K // 2, :]) + halving(a[..., K // 2 :], b[..., K // 2 :, :])


def tensor_core(a, b, step=8, extra=1):
    """Groups of `step` exact products and the sum so far, aligned to the largest, cut off `extra` bits below float32's last."""
    K = a.shape[-1]
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(0, K, step):
        terms = a[..., :, None, k : k + step] * b.swapaxes(-1, -2)[..., None, :, k : k + step]
        terms = np.concatenate([terms, total[..., None]], axis=-1)
        unit = 2.0 ** (np.frexp(np.abs(terms).max(axis=-1, keepdims=True))[1] - 24 - extra)
        total = (np.trunc(terms / unit) * unit).sum(axis=-1)
        total = truncated(total, np.frexp(total)[1] - 24)
    return wide(total)


def promoted(a, b, block=64):
    """Blocks of K by tensor cores, added in float32, as narrow accumulators want it."""
    return sum(tensor_core(a[..., k : k + block], b[..., k : k + block, :], 16) for k in range(0, a.shape[-1], block))


def truncated(a, exponent):
    unit = 2.0**exponent
    return np.where(np.isfinite(a), np.trunc(a / unit) * unit, a)


def tf32_cut(a):
    """The upper 19 bits, which a tensor core reads of a float32."""
    return (wide(a).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def tf32_nearest(a):
    return ((wide(a).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def in_storage(case, terms):
    """The sum over the last axis, each addition rounded to the storage dtype: 16 terms a thread, 1024 threads at most, then these in pairs."""
    K = terms.shape[-1]
    threads = min(1024, -(-K // 16))
    padded = np.pad(terms, [(0, 0)] * (terms.ndim - 1) + [(0, -K % threads)]).reshape(*terms.shape[:-1], -1, threads)
    sums = padded[..., 0, :]
    for n in range(1, padded.shape[-2]):
        sums = keep(case, sums + padded[..., n, :])
    while sums.shape[-1] > 1:
        sums = np.pad(sums, [(0, 0)] * (terms.ndim - 1) + [(0, sums.shape[-1] % 2)])
        half = sums.shape[-1] // 2
        sums = keep(case, sums[..., :half] + sums[..., half:])
    return sums


def bfloat16_cut(a):
    return (wide(a).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def fp8(a):
    """Rounded to 4 bits of exponent and 3 of mantissa."""
    return wide(wide(a).astype(ml_dtypes.float8_e4m3fn))


def three_of_bfloat16(a, b):
    """A product of float32 from the larger three of four products of bfloat16."""
    (a, rest_of_a), (b, rest_of_b) = (
        (high, wide((x - high).astype(ml_dtypes.bfloat16)))
        for x in (a, b)
        for high in [wide(x.astype(ml_dtypes.bfloat16))]
    )
    return a @ b + (a @ rest_of_b + rest_of_a @ b)


def of(change, product=library):
    """The product of changed operands."""
    return lambda a, b: product(change(a), change(b))


def half_sums(a, b):
    """Summed in float16, as the first tensor cores could."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float16)
    for k in range(a.shape[-1]):
        total = (total + a[..., k : k + 1] * b[..., k : k + 1, :]).astype(np.float16)
    return wide(total)


def half_steps(a, b, step=8):
    """As a tensor core with a float16 accumulator: operands in float16, `step` of K in each instruction."""
    a, b = wide(a.astype(np.float16)), wide(b.astype(np.float16))
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for k in range(0, a.shape[1], step):
        total = (wide(total) + a[:, k : k + step] @ b[k : k + step]).astype(np.float16)
    return wide(total)


PRODUCTS = {
    "library": library,
    "rank one": rank_one,
    "multiply-add": multiply_add,
    "blocked": blocked,
    "split-K": split_k,
    "halving": halving,
    "four accumulators": four_accumulators,
}
TENSOR_CORES = {  # for 16-bit operands, whose products float32 holds
    "tensor core of 4": partial(tensor_core, step=4, extra=0),
    "tensor core of 8": tensor_core,
    "tensor core of 16": partial(tensor_core, step=16, extra=2),
    "tensor core, promoted": promoted,
}
TF32 = {
    "tf32 cut off": of(tf32_cut),
    "tf32 nearest": of(tf32_nearest),
    "tf32 cut off, tensor core": of(tf32_cut, tensor_core),
    "tf32 nearest, tensor core": of(tf32_nearest, partial(tensor_core, step=4)),
}
SUMS = {"pairwise": pairwise, "sequential": sequential, "lanes": lanes, "backwards": backwards, "of blocks": of_blocks}


def products(case):
    """Does a case have products of 16-bit operands, or of tf32, or neither?"""
    return "16" if case.dtype != "float32" else case.precision


def is_16(case):
    return case.dtype != "float32"


def is_bfloat16(case):
    return case.dtype == "bfloat16"


def is_32(case):
    return case.dtype == "float32"


def is_ieee(case):
    return case.dtype == "float32" and case.precision == "ieee"


def is_tf32(case):
    return case.precision == "tf32"


# Activations of float32. `step` stores every step where a program does.


def relu(z):
    return np.maximum(z, np.float32(0))  # keeps NaN


def gelu_tanh(z, step=same, tanh=np.tanh, cubic=0.044715, root=0.7978845608028654, half=0.5):
    cubic, root = step(np.float32(cubic)), step(np.float32(root))
    inner = step(root * step(z + step(cubic * step(z * step(z * z)))))
    return z * step(np.float32(half) * step(1 + step(tanh(inner))))


def gelu_erf(z, step=same):
    return step(np.float32(0.5) * z) * step(1 + step(erf(step(step(np.float32(0.7071067811865476)) * z))))


def sigmoid_exp(z):
    return 1 / (1 + np.exp(-z))


def tanh_exp(z):
    """By an exponential, as a GPU without a tanh does it; near 0 by the series, where the quotient would cancel."""
    size = np.abs(z)
    e = np.exp(-2 * size)
    square = z * z
    near = z * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    return np.where(size < np.float32(0.3), near, np.copysign((1 - e) / (1 + e), z))


def erf_rational(x):
    """As XLA has it: a quotient of polynomials, the argument clipped where erf is 1."""
    x = np.clip(x, np.float32(-4), np.float32(4))
    over = (
        -2.72614225801306e-10,
        2.77068142495902e-08,
        -2.10102402082508e-06,
        -5.69250639462346e-05,
        -7.34990630326855e-04,
        -2.95459980854025e-03,
        -1.60960333262415e-02,
    )
    under = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
             -1.42647390514189e-02)  # fmt: skip
    return x * horner(over, x * x) / horner(under, x * x)


def horner(factors, x):
    value = np.zeros_like(x)
    for factor in factors:
        value = value * x + np.float32(factor)
    return value


def activate_otherwise(name, z):
    """GELU by sigmoid, or by the rational erf, and the rest by exp."""
    if name == "gelu_tanh":
        return z / (1 + np.exp(np.float32(-1.5957691216057308) * (z + np.float32(0.044715) * z * z * z)))
    if name == "gelu_erf":
        return np.float32(0.5) * z * (1 + erf_rational(z * np.float32(0.7071067811865476)))
    return activate_exp(name, z)


def activate(name, z, step=same):
    """The activation with the libraries' functions."""
    return {
        "none": lambda: z,
        "relu": lambda: relu(z),
        "sigmoid": lambda: step(expit(z)),
        "tanh": lambda: step(np.tanh(z)),
        "silu": lambda: z * step(expit(z)),
        "gelu_tanh": lambda: gelu_tanh(z, step),
        "gelu_erf": lambda: gelu_erf(z, step),
    }[name]()


def activate_exp(name, z):
    """The same by way of exp alone."""
    other = {
        "sigmoid": lambda: sigmoid_exp(z),
        "tanh": lambda: tanh_exp(z),
        "silu": lambda: z / (1 + np.exp(-z)),
        "gelu_tanh": lambda: gelu_tanh(z, tanh=tanh_exp),
    }
    return other[name]() if name in other else activate(name, z)


def rounded_to(a, bits):
    """To so many bits of mantissa."""
    mantissa, exponent = np.frexp(wide(a).astype(np.float64))
    return wide(np.ldexp(np.rint(mantissa * 2.0**bits), exponent - bits))


def dropped(a, rate=0.002):
    """Dropout that was left in."""
    kept = np.random.default_rng(1).random(a.shape) >= rate
    return a * kept / np.float32(1 - rate)


def loses_nan(name, z):
    """max(0, z) as Triton and C have it: NaN becomes 0."""
    return np.fmax(z, np.float32(0)) if name == "relu" else activate(name, z)
