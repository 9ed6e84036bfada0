"""add_mul_act: act(x + multiplier * z + b)."""

from functools import partial

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import (
    activate,
    activate_exp,
    edit,
    first_again,
    flush,
    given,
    half,
    is_16,
    is_32,
    keep,
    loses_nan,
    store,
    wide,
)


def fused(case, x, z, multiplier, b, act=activate, factor=wide, bias=wide):
    return store(case, act(case.options["activation"], wide(x) + factor(multiplier) * wide(z) + bias(b)))


def multiply_add(case, x, z, multiplier, b):
    """The product is not rounded."""
    total = wide(x.astype(np.float64) + multiplier.astype(np.float64) * z.astype(np.float64))
    return store(case, activate(case.options["activation"], total + wide(b)))


def addcmul(case, x, z, multiplier, b):
    """Torch's two operators, the sum stored between them."""
    biased = keep(case, keep(case, wide(x) + wide(multiplier) * wide(z)) + wide(b))
    return store(case, activate(case.options["activation"], biased))


def operators(case, x, z, multiplier, b, step=None):
    total = keep(case, wide(x) + keep(case, wide(multiplier) * wide(z)))
    biased = keep(case, total + wide(b))
    return store(case, activate(case.options["activation"], biased, *([step] if step else [])))


def each_step(case, *inputs):
    return operators(case, *inputs, step=partial(keep, case))


def flushed(case, x, z, multiplier, b):
    total = flush(flush(x) + flush(wide(multiplier) * flush(z)))
    return flush(activate(case.options["activation"], flush(total + flush(b))))


CORRECT = {
    "fused": Program(fused),
    "fused, by exp": Program(partial(fused, act=activate_exp)),
    "multiply-add": Program(multiply_add),
    "addcmul": Program(addcmul, ("sum", "bias")),
    "operators": Program(operators, ("product", "sum", "bias")),
    "each step": Program(each_step, ("product", "sum", "bias", "activation"), is_16),
    "subnormals flushed": Program(flushed, ("subnormals",), is_32),
}

LARGEST = {"M": 60, "N": 150}
ODD, TALL, WIDE, SQUARE = {"M": 37, "N": 203}, {"M": 500, "N": 3}, {"M": 3, "N": 5000}, {"M": 40, "N": 40}
F = "fused"


def with_(**hooks):
    return partial(fused, **hooks)


def whole(change):
    return lambda *inputs: change(fused(*inputs))


def fixed_multiplier():
    first = []

    def run(case, x, z, multiplier, b):
        first.append(multiplier)
        return fused(case, x, z, first[0], b)

    return run


def small(arrays):
    """A thousandth of everything: where sums are near 1, their own rounding hides what cancels near 0."""
    return {n: (a / 1024).astype(a.dtype) for n, a in arrays.items()}


def act(name):
    return {"activation": name}


def instead(name):
    return with_(act=lambda _, z: activate(name, z))


MISTAKES = {
    "x by way of float16": Mistake(given(fused, 0, half), F, ODD, "bfloat16", inputs="wide"),
    "multiplier taken for positive": Mistake(given(fused, 2, np.abs), F, ODD, inputs="scalar"),
    "scaled back": Mistake(
        lambda case, x, z, m, b: fused(case, x * wide(m) / wide(m), z, m, b), F, ODD, inputs="zeros"),
    "scale forgotten": Mistake(with_(factor=lambda m: np.float32(1)), F, ODD),
    "scale of 0.5 whatever is asked": Mistake(with_(factor=lambda m: np.float32(0.5)), F, ODD),
    "scale fixed at the first value": Mistake(fixed_multiplier(), F, ODD, calls=2),
    "scale in bfloat16": Mistake(
        with_(factor=lambda m: (wide(m).reshape(1).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)), F, ODD),
    "scale applied to x": Mistake(lambda case, x, z, m, b: fused(case, z, x, m, b), F, ODD),
    "scale applied to the bias too": Mistake(with_(bias=lambda b: wide(b) / 2), F, ODD),
    "scale applied to the sum": Mistake(
        lambda case, x, z, m, b: fused(case, wide(m) * wide(x), z, m, b), F, ODD),
    "scale subtracted": Mistake(with_(factor=lambda m: -wide(m)), F, ODD),
    "z forgotten": Mistake(with_(factor=lambda m: np.float32(0)), F, ODD),
    "bias forgotten": Mistake(with_(bias=lambda b: np.float32(0)), F, ODD),
    "bias by row": Mistake(with_(bias=lambda b: wide(b)[:, None]), F, SQUARE),
    "bias of the first 1024 columns alone": Mistake(with_(bias=lambda b: edit(wide(b), np.s_[1024:], 0)), F, WIDE),
    "only where N >= M": Mistake(whole(lambda y: edit(y, np.s_[y.shape[1] :], 0)), F, TALL),
    "z transposed": Mistake(lambda case, x, z, m, b: fused(case, x, z.T, m, b), F, SQUARE),
    "relu loses NaN": Mistake(with_(act=loses_nan), F, ODD, inputs="nan"),
    "no activation": Mistake(instead("none"), F, ODD),
    "tanh for erf": Mistake(instead("gelu_tanh"), F, ODD, options=act("gelu_erf")),
    "erf for tanh": Mistake(instead("gelu_erf"), F, ODD, options=act("gelu_tanh")),
    "sigmoid for tanh": Mistake(instead("sigmoid"), F, ODD, options=act("tanh")),
    "silu for sigmoid": Mistake(instead("silu"), F, ODD, options=act("sigmoid")),
    "sigmoid for silu": Mistake(instead("sigmoid"), F, ODD, options=act("silu")),
    "gelu for silu": Mistake(instead("gelu_tanh"), F, ODD, options=act("silu")),
    "relu for silu, large inputs": Mistake(instead("relu"), F, ODD, options=act("silu")),
    "hard sigmoid": Mistake(
        with_(act=lambda _, z: np.clip(z / 6 + np.float32(0.5), 0, 1)), F, ODD, options=act("sigmoid")),
    "exp overflows to NaN in tanh": Mistake(
        with_(act=lambda _, z: (np.exp(2 * z) - 1) / (np.exp(2 * z) + 1)), F, ODD, options=act("tanh"), inputs="large_mean"),
    "tanh cancels near 0": Mistake(
        with_(act=lambda _, z: 1 - 2 / (np.exp(2 * z) + 1)), F, ODD, options=act("tanh"), change=small),
    "silu loses NaN of -inf": Mistake(
        with_(act=lambda _, z: np.where(z < -100, np.float32(0), activate("silu", z))), F, ODD, options=act("silu"),
        inputs="inf"),
    "stored but not declared": Mistake(operators, F, ODD, "bfloat16"),
    "stored but not declared, float16": Mistake(operators, F, ODD, "float16"),
    "product in float16": Mistake(
        lambda case, x, z, m, b: fused(case, x, wide(z.astype(np.float16)), m, b), F, ODD),
    "last row missing": Mistake(whole(lambda y: edit(y, -1, 0)), F, {"M": 38, "N": 203}, options=act("gelu_tanh")),
    "last vector missing": Mistake(whole(lambda y: edit(y.ravel(), np.s_[-3:], 0).reshape(y.shape)), F, ODD,
                                   options=act("sigmoid")),
    "transposed": Mistake(whole(lambda y: y.T.copy()), F, SQUARE),
    "x given back": Mistake(lambda case, x, *_: x, F, ODD),
    "first output again": Mistake(first_again(fused), F, ODD, calls=2),
}  # fmt: skip
