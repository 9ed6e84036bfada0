"""geglu: Z = x @ W + b, the left half of its columns times GELU of the right."""

from functools import partial

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import (
    PRODUCTS,
    TENSOR_CORES,
    TF32,
    activate,
    activate_exp,
    activate_otherwise,
    bfloat16_cut,
    columns,
    edit,
    first_again,
    flush,
    given,
    half,
    half_sums,
    is_16,
    is_32,
    is_ieee,
    is_tf32,
    keep,
    library,
    of,
    same,
    store,
    tf32_cut,
    tf32_nearest,
    wide,
)


def halves(Z):
    return np.split(Z, 2, axis=1)


def fused(case, x, W, b, product=library, act=activate, split=halves, rows=same, bias=wide):
    z1, z2 = split(product(rows(wide(x)), columns(case, W)) + bias(b))
    return store(case, z1 * act(case.options["activation"], z2))


def bias_first(case, x, W, b):
    """The sum begins with the bias, as some libraries do."""
    begun = np.hstack([np.ones((len(x), 1), np.float32), wide(x)])
    z1, z2 = halves(PRODUCTS["rank one"](begun, np.vstack([wide(b), columns(case, W)])))
    return store(case, z1 * activate(case.options["activation"], z2))


def staged(case, x, W, b, product=library, step=same):
    z1, z2 = halves(keep(case, keep(case, product(wide(x), columns(case, W))) + wide(b)))
    return store(case, z1 * keep(case, activate(case.options["activation"], z2, step)))


def each_step(case, x, W, b):
    return staged(case, x, W, b, step=partial(keep, case))


CORRECT = {
    "fused, by sigmoid and a rational erf": Program(partial(fused, act=activate_otherwise)),
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_ieee) for n, p in PRODUCTS.items()},
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_16) for n, p in TENSOR_CORES.items()},
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_tf32) for n, p in TF32.items()},
    "fused, by exp": Program(partial(fused, act=activate_exp)),
    "bias first": Program(bias_first, (), is_ieee),
    "staged": Program(staged, ("product", "bias", "gate")),
    "staged, tensor core of 8": Program(
        partial(staged, product=TENSOR_CORES["tensor core of 8"]), ("product", "bias", "gate"), is_16),
    "each step": Program(each_step, ("product", "bias", "activation", "gate"), is_16),
    "subnormals flushed": Program(
        lambda case, x, W, b: flush(fused(case, flush(x), flush(W), flush(b))), ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"M": 48, "K": 300, "N": 80}
LONG = "K"
ODD, SQUARE = {"M": 37, "K": 131, "N": 83}, {"M": 48, "K": 48, "N": 48}
TANH = {"activation": "gelu_tanh"}
F, F16 = "fused, library", "fused, tensor core of 8"


def with_(**hooks):
    return partial(fused, **hooks)


def whole(change):
    return lambda *inputs: change(fused(*inputs))


def instead(name):
    return with_(act=lambda _, z: activate(name, z))


MISTAKES = {
    "x by way of float16": Mistake(given(fused, 0, half), F16, ODD, "bfloat16", inputs="wide"),
    "halves swapped": Mistake(with_(split=lambda Z: halves(Z)[::-1]), F, ODD),
    "pairs instead of halves": Mistake(with_(split=lambda Z: (Z[:, ::2], Z[:, 1::2])), F, ODD),
    "tanh for erf": Mistake(instead("gelu_tanh"), F, ODD),
    "erf for tanh": Mistake(instead("gelu_erf"), F, ODD, options=TANH),
    "tanh for erf, bfloat16": Mistake(instead("gelu_tanh"), F16, ODD, "bfloat16"),
    "silu for gelu": Mistake(instead("silu"), F, ODD),
    "sigmoid for gelu": Mistake(instead("sigmoid"), F, ODD),
    "no activation": Mistake(instead("none"), F, ODD),
    "gelu of both": Mistake(with_(split=lambda Z: (activate("gelu_erf", halves(Z)[0]), halves(Z)[1])), F, ODD),
    "bias forgotten": Mistake(with_(bias=lambda b: 0 * wide(b)), F, ODD),
    "bias of the left half in both": Mistake(with_(bias=lambda b: np.tile(wide(b)[: len(b) // 2], 2)), F, ODD),
    "bias of the gate forgotten": Mistake(with_(bias=lambda b: edit(wide(b), np.s_[len(b) // 2 :], 0)), F, ODD),
    "bias after the gate": Mistake(
        lambda case, x, W, b: store(case, wide(fused(case, x, W, 0 * b)) + wide(b)[: len(b) // 2]), F, ODD),
    "last K missing": Mistake(with_(rows=lambda x: edit(x, np.s_[:, -1], 0)), F, ODD),
    "last K-block missing": Mistake(with_(rows=lambda x: edit(x, np.s_[:, 128:], 0)), F, ODD),
    "last row missing": Mistake(whole(lambda y: edit(y, -1, 0)), F, ODD),
    "last column missing": Mistake(whole(lambda y: edit(y, np.s_[:, -1], 0)), F, ODD),
    "float16 accumulation": Mistake(with_(product=half_sums), F16, ODD, "float16"),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), F, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), F, ODD),
    "bfloat16 where tf32 was asked": Mistake(with_(product=of(bfloat16_cut)), "fused, tf32 cut off", ODD, precision="tf32"),
    "stored but not declared": Mistake(staged, F16, ODD, "bfloat16"),
    "stored but not declared, float16": Mistake(staged, F16, ODD, "float16"),
    "only the gate stored, not declared": Mistake(
        lambda case, *a: fused(case, *a, act=lambda n, z: keep(case, activate(n, z))), F16, ODD, "bfloat16"),
    "NaN made 0": Mistake(whole(np.nan_to_num), F, ODD, inputs="nan"),
    "layout of W ignored": Mistake(
        lambda case, x, W, b: fused(case, x, W.reshape(48, 96).T.copy(), b), F, SQUARE, options={"w_layout": "nk"}),
    "transposed": Mistake(whole(lambda y: y.T.copy()), F, SQUARE),
    "columns one off": Mistake(whole(lambda y: np.roll(y, 1, axis=1)), F, ODD),
    "zeros": Mistake(whole(np.zeros_like), F, ODD),
    "first output again": Mistake(first_again(fused), F, ODD, calls=2),
}  # fmt: skip
