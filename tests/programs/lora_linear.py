"""lora_linear: act(x @ W + b + scale * (x @ A) @ B)."""

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
    dropped,
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
    loses_nan,
    of,
    same,
    store,
    tf32_cut,
    tf32_nearest,
    wide,
)

STAGED = ("product", "bias", "xa", "xab", "scaled", "sum")


def fused(case, x, scale, W, b, A, B, product=library, act=activate, middle=same, factor=wide, bias=wide, down=same,
          rows=same):  # fmt: skip
    """All in float32; `middle` is what becomes of x @ A before it meets B."""
    x = wide(x)
    adapter = product(middle(product(down(x), wide(A))), wide(B))
    z = product(rows(x), columns(case, W)) + bias(b) + factor(scale) * adapter
    return store(case, act(case.options["activation"], z))


def middle_stored(case, *inputs, product=library):
    """x @ A stored, for the tensor cores or for a second launch."""
    return fused(case, *inputs, product=product, middle=partial(keep, case))


def staged(case, x, scale, W, b, A, B, product=library, step=same):
    """Torch's operators, bias apart."""
    k = partial(keep, case)
    straight = k(k(product(wide(x), columns(case, W))) + wide(b))
    adapter = k(product(k(product(wide(x), wide(A))), wide(B)))
    return store(case, activate(case.options["activation"], k(straight + k(wide(scale) * adapter)), step))


def each_step(case, *inputs):
    return staged(case, *inputs, step=partial(keep, case))


def side_by_side(case, x, scale, W, b, A, B, product=library):
    """One product: scale * x @ A beside x, B below W."""
    x, scale = wide(x), wide(scale)
    z = product(np.hstack([x, scale * product(x, wide(A))]), np.vstack([columns(case, W), wide(B)])) + wide(b)
    return store(case, activate(case.options["activation"], z))


def merged(case, x, scale, W, b, A, B):
    """The adapter added to the weights, in float32."""
    weights = columns(case, W) + wide(scale) * (wide(A) @ wide(B))
    return store(case, activate(case.options["activation"], wide(x) @ weights + wide(b)))


CORRECT = {
    "side by side": Program(side_by_side, (), lambda case: not is_tf32(case)),
    "merged": Program(merged, (), is_ieee),
    "fused, by sigmoid and a rational erf": Program(partial(fused, act=activate_otherwise)),
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_ieee) for n, p in PRODUCTS.items()},
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_tf32) for n, p in TF32.items()},
    "fused, by exp": Program(partial(fused, act=activate_exp)),
    **{f"x @ A stored, {n}": Program(partial(middle_stored, product=p), ("xa",), is_16) for n, p in TENSOR_CORES.items()},
    "x @ A stored": Program(middle_stored, ("xa",)),
    "staged": Program(staged, STAGED),
    "each step": Program(each_step, (*STAGED, "activation"), is_16),
    "subnormals flushed": Program(
        lambda case, *a: flush(fused(case, *map(flush, a))), ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"M": 48, "K": 300, "N": 100, "R": 20}
LONG = "K"
ODD, SQUARE = {"M": 37, "K": 131, "N": 103, "R": 13}, {"M": 48, "K": 48, "N": 48, "R": 48}
F, X = "fused, library", "x @ A stored"


def with_(**hooks):
    return partial(fused, **hooks)


def whole(change):
    return lambda *inputs: change(fused(*inputs))


def fixed_scale():
    first = []

    def run(case, x, scale, *rest):
        first.append(scale)
        return fused(case, x, first[0], *rest)

    return run


def act(name):
    return {"activation": name}


MISTAKES = {
    "x by way of float16": Mistake(given(fused, 0, half), X, ODD, "bfloat16", inputs="wide"),
    "scale taken for positive": Mistake(given(fused, 1, np.abs), F, ODD, inputs="scalar"),
    "scaled back": Mistake(
        lambda case, x, s, *rest: fused(case, x, s, *rest, middle=lambda xa: xa * wide(s) / wide(s)), F, ODD, inputs="zeros"),
    "dropout left in": Mistake(
        lambda case, x, *rest: fused(case, store(case, dropped(wide(x))), *rest), X, ODD, "bfloat16"),
    "bias of the neighbour in the last tile": Mistake(
        with_(bias=lambda b: edit(wide(b), np.s_[96:], np.roll(wide(b), 1)[96:])), X, ODD, "float16"),
    "one rank lost": Mistake(with_(middle=lambda xa: edit(xa, np.s_[:, -1], 0)), X, ODD, "bfloat16"),
    "scale forgotten": Mistake(with_(factor=lambda s: np.float32(1)), F, ODD),
    "scale of 0.5 whatever is asked": Mistake(with_(factor=lambda s: np.float32(0.5)), F, ODD),
    "scale fixed at the first value": Mistake(fixed_scale(), F, ODD, calls=2),
    "scale divided by the rank": Mistake(with_(factor=lambda s: wide(s) / np.float32(13)), F, ODD),
    "scale in float16": Mistake(with_(factor=lambda s: wide(np.asarray(s).astype(np.float16))), F, ODD),
    "scale twice": Mistake(with_(middle=lambda xa: xa * np.float32(0.5)), F, ODD),
    "adapter forgotten": Mistake(with_(factor=lambda s: np.float32(0)), F, ODD),
    "bias forgotten": Mistake(with_(bias=lambda b: 0 * wide(b)), F, ODD),
    "bias inside the adapter": Mistake(
        lambda case, x, s, W, b, A, B: fused(case, x, s, W, b, A, B, bias=lambda b: wide(s) * wide(b)), F, ODD),
    "bias by row": Mistake(with_(bias=lambda b: wide(b)[:, None]), F, SQUARE),
    "last rank missing": Mistake(with_(middle=lambda xa: edit(xa, np.s_[:, -1], 0)), F, ODD),
    "ranks past 8 missing": Mistake(with_(middle=lambda xa: edit(xa, np.s_[:, 8:], 0)), F, ODD),
    "last K missing": Mistake(with_(rows=lambda x: edit(x, np.s_[:, -1], 0)), F, ODD),
    "last K-block missing from the adapter": Mistake(with_(down=lambda x: edit(x, np.s_[:, 128:], 0)), F, ODD),
    "last K-block missing": Mistake(with_(rows=lambda x: edit(x, np.s_[:, 128:], 0)), F, ODD),
    "A transposed": Mistake(lambda case, x, s, W, b, A, B: fused(case, x, s, W, b, A.T, B), F, SQUARE),
    "B transposed": Mistake(lambda case, x, s, W, b, A, B: fused(case, x, s, W, b, A, B.T), F, SQUARE),
    "activation before the adapter": Mistake(
        lambda case, x, s, W, b, A, B: store(
            case, activate("relu", wide(x) @ wide(W) + wide(b)) + wide(s) * ((wide(x) @ wide(A)) @ wide(B))),
        F, ODD, options=act("relu")),
    "relu loses NaN": Mistake(with_(act=loses_nan), F, ODD, options=act("relu"), inputs="nan"),
    "tanh for erf": Mistake(with_(act=lambda _, z: activate("gelu_tanh", z)), F, ODD, options=act("gelu_erf")),
    "no activation": Mistake(with_(act=lambda _, z: z), F, ODD, options=act("silu")),
    "relu of x @ A": Mistake(with_(middle=lambda xa: activate("relu", xa)), F, ODD),
    "float16 accumulation": Mistake(
        lambda case, *a: middle_stored(case, *a, product=half_sums), X, ODD, "float16"),
    "float16 accumulation of the adapter alone": Mistake(
        with_(middle=lambda xa: wide(xa.astype(np.float16))), F, ODD),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), F, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), F, ODD),
    "tf32 in the adapter where ieee was asked": Mistake(with_(down=tf32_nearest), F, ODD),
    "bfloat16 where tf32 was asked": Mistake(with_(product=of(bfloat16_cut)), "fused, tf32 cut off", ODD, precision="tf32"),
    "stored but not declared": Mistake(staged, X, ODD, "bfloat16"),
    "stored but not declared, float16": Mistake(staged, X, ODD, "float16"),
    "layout of W ignored": Mistake(
        lambda case, x, s, W, *rest: fused(case, x, s, W.T, *rest), F, SQUARE, options={"w_layout": "nk"}),
    "last row missing": Mistake(whole(lambda y: edit(y, -1, 0)), F, ODD),
    "last column missing": Mistake(whole(lambda y: edit(y, np.s_[:, -1], 0)), F, ODD),
    "transposed": Mistake(whole(lambda y: y.T.copy()), F, SQUARE),
    "zeros": Mistake(whole(np.zeros_like), F, ODD),
    "first output again": Mistake(first_again(fused), F, ODD, calls=2),
}  # fmt: skip
