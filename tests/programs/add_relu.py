"""add_relu: relu(x + b)."""

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import edit, first_again, flush, given, half, is_16, is_32, keep, loses_nan, relu, store, wide


def fused(case, x, b, act=relu, bias=None):
    return store(case, act(wide(x) + (wide(b) if bias is None else bias(wide(b)))))


def stored_sum(case, x, b):
    return store(case, relu(keep(case, wide(x) + wide(b))))


def flat(case, x, b):
    """On the flattened array, the bias by index modulo N."""
    at = np.arange(x.size)
    return store(case, relu(wide(x).ravel() + wide(b)[at % b.size])).reshape(x.shape)


def by_comparison(case, x, b):
    z = wide(x) + wide(b)
    return store(case, np.where(z < 0, np.float32(0), z))


CORRECT = {
    "fused": Program(fused),
    "sum stored": Program(stored_sum),
    "flat": Program(flat),
    "by comparison": Program(by_comparison),
    "in the storage dtype": Program(lambda case, x, b: np.maximum(x + b, x.dtype.type(0)), (), is_16),
    "in the same place": Program(lambda case, x, b: np.maximum(np.add(x, b, out=x.copy()), x.dtype.type(0)), (), is_32),
    "subnormals flushed": Program(
        lambda case, x, b: flush(relu(flush(flush(x) + flush(b)))), ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"M": 100, "N": 200}
ODD, TALL, WIDE, SQUARE = {"M": 37, "N": 203}, {"M": 500, "N": 3}, {"M": 3, "N": 5000}, {"M": 40, "N": 40}
F = "fused"


def whole(change):
    return lambda case, x, b: change(fused(case, x, b))


def modulo(divisor):
    """The bias index modulo something else than N."""
    return lambda case, x, b: store(
        case, relu(wide(x).ravel() + wide(b)[np.arange(x.size) % divisor(x.shape) % b.size])).reshape(x.shape)  # fmt: skip


MISTAKES = {
    "x by way of float16": Mistake(given(fused, 0, half), F, ODD, "bfloat16", inputs="wide"),
    "bias forgotten": Mistake(lambda case, x, b: fused(case, x, 0 * b), F, ODD),
    "bias after relu": Mistake(lambda case, x, b: store(case, relu(wide(x)) + wide(b)), F, ODD),
    "bias by row": Mistake(lambda case, x, b: fused(case, x, b[:, None]), F, SQUARE),
    "bias modulo M": Mistake(modulo(lambda shape: shape[0]), F, ODD),
    "bias modulo N - 1": Mistake(modulo(lambda shape: shape[1] - 1), F, ODD),
    "bias by vector, not element": Mistake(
        lambda case, x, b: store(case, relu(wide(x).ravel() + wide(b)[np.arange(x.size) // 4 * 4 % b.size])).reshape(x.shape),
        F, TALL),
    "bias of the first 1024 columns alone": Mistake(
        lambda case, x, b: fused(case, x, b, bias=lambda b: edit(b, np.s_[1024:], 0)), F, WIDE),
    "columns past 1024 missing": Mistake(whole(lambda y: edit(y, np.s_[:, 1024:], 0)), F, WIDE),
    "bias twice": Mistake(lambda case, x, b: fused(case, x, b, bias=lambda b: 2 * b), F, ODD),
    "relu loses NaN": Mistake(lambda case, x, b: fused(case, x, b, act=lambda z: loses_nan("relu", z)), F, ODD, inputs="nan"),
    "relu as a product: -inf times 0": Mistake(
        lambda case, x, b: fused(case, x, b, act=lambda z: z * (z > 0)), F, ODD, inputs="inf"),
    "no relu": Mistake(lambda case, x, b: fused(case, x, b, act=lambda z: z), F, ODD),
    "absolute value": Mistake(lambda case, x, b: fused(case, x, b, act=np.abs), F, ODD),
    "leaky relu": Mistake(
        lambda case, x, b: fused(case, x, b, act=lambda z: np.where(z > 0, z, np.float32(0.01) * z)), F, ODD),
    "relu6": Mistake(lambda case, x, b: fused(case, x, b, act=lambda z: np.minimum(relu(z), 6)), F, ODD, inputs="large_mean"),
    "infinity made the largest": Mistake(
        lambda case, x, b: fused(case, x, b, act=lambda z: np.nan_to_num(relu(z), nan=np.nan)), F, ODD, inputs="inf"),
    "last vector missing": Mistake(whole(lambda y: edit(y.ravel(), np.s_[-3:], 0).reshape(y.shape)), F, ODD),
    "last row missing": Mistake(whole(lambda y: edit(y, -1, 0)), F, ODD),
    "last column missing": Mistake(whole(lambda y: edit(y, np.s_[:, -1], 0)), F, ODD),
    "only rows as many as columns": Mistake(whole(lambda y: edit(y, np.s_[y.shape[1] :], 0)), F, TALL),
    "transposed": Mistake(whole(lambda y: y.T.copy()), F, SQUARE),
    "zeros": Mistake(whole(np.zeros_like), F, ODD),
    "sum in float16": Mistake(
        lambda case, x, b: store(case, relu(wide(x.astype(np.float16) + b.astype(np.float16)))), F, ODD),
    "sum in float16 of bfloat16": Mistake(
        lambda case, x, b: store(case, relu(wide(x.astype(np.float16) + b.astype(np.float16)))), F, ODD, "bfloat16",
        inputs="large_mean"),
    "sum rounded to bfloat16 of float16": Mistake(
        lambda case, x, b: store(case, (relu(wide(x) + wide(b)).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)),
        F, ODD, "float16"),
    "subnormals lost": Mistake(lambda case, x, b: flush(relu(flush(x) + flush(b))), F, ODD, inputs="subnormal",
                               change=lambda arrays: arrays | {"b": arrays["b"] * np.float32(2.0**-130)}),
    "one element one step off": Mistake(
        whole(lambda y: edit(y, (3, 5), np.nextafter(np.float32(y[3, 5]), np.float32(9)) + np.float32(1e-6))), F, ODD),
    "first output again": Mistake(first_again(fused), F, ODD, calls=2),
}  # fmt: skip
