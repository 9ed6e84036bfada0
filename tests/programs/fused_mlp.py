"""fused_mlp: linear layers with ReLU between them, and a last activation."""

from dataclasses import replace
from functools import partial

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import (
    PRODUCTS,
    TENSOR_CORES,
    TF32,
    activate,
    activate_exp,
    bfloat16_cut,
    columns,
    dropped,
    edit,
    first_again,
    flush,
    fp8,
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
    rank_one,
    relu,
    same,
    store,
    tf32_cut,
    tf32_nearest,
    wide,
)


def fused(case, x, *layers, product=library, act=activate, hidden=same, between=relu, bias=None, last=None, first=same):
    """`hidden` is what becomes of a layer's output on its way to the next, `bias` of the biases, by layer."""
    h = first(wide(x))
    count = len(layers) // 2
    for i in range(count):
        W, b = wide(layers[2 * i]), wide(layers[2 * i + 1])
        z = product(h, W if case.options["w_layout"] == "kn" else W.T) + (b if bias is None else bias(i, b))
        h = hidden(between(z)) if i + 1 < count else z
    return store(case, act(case.options["last"] if last is None else last, h))


def bias_first(case, x, *layers):
    """Every sum begins with the bias."""
    h = wide(x)
    for i in range(0, len(layers), 2):
        W = columns(case, layers[i])
        z = rank_one(np.hstack([np.ones((len(h), 1), np.float32), h]), np.vstack([wide(layers[i + 1]), W]))
        h = relu(z)
    return store(case, activate(case.options["last"], z))


def hidden_stored(case, *inputs, product=library):
    """Between layers 16 bits, for the tensor cores."""
    return fused(case, *inputs, product=product, hidden=partial(keep, case))


def staged(case, x, *layers, product=library, step=same):
    k = partial(keep, case)
    h = wide(x)
    for i in range(0, len(layers), 2):
        W = wide(layers[i])
        z = k(k(product(h, W if case.options["w_layout"] == "kn" else W.T)) + wide(layers[i + 1]))
        h = relu(z)
    return store(case, activate(case.options["last"], z, step))


def each_step(case, *inputs):
    """exp, sum and inverse of the sigmoid stored, too."""
    if case.options["last"] != "sigmoid":
        return staged(case, *inputs)
    k = partial(keep, case)
    plain = replace(case, options={**case.options, "last": "none"})
    return store(case, 1 / k(1 + k(np.exp(-wide(staged(plain, *inputs))))))


def four_at_most(case):
    """No more layers than the kernel has names for."""
    return case.sizes["LAYERS"] <= 4


def when(test):
    return lambda case: test(case) and four_at_most(case)


CORRECT = {
    **{f"fused, {n}": Program(partial(fused, product=p), (), when(is_ieee)) for n, p in PRODUCTS.items()},
    **{f"fused, {n}": Program(partial(fused, product=p), (), when(is_tf32)) for n, p in TF32.items()},
    "bias first": Program(bias_first, (), when(is_ieee)),
    "fused, by exp": Program(partial(fused, act=activate_exp)),
    **{f"hidden stored, {n}": Program(partial(hidden_stored, product=p), ("hidden",), is_16) for n, p in TENSOR_CORES.items()},
    "hidden stored": Program(hidden_stored, ("hidden",)),
    "staged": Program(staged, ("product", "bias")),
    "each step": Program(each_step, ("product", "bias", "activation"), is_16),
    "subnormals flushed": Program(
        lambda case, *a: flush(fused(case, *map(flush, a), hidden=flush)), ("subnormals",), is_32),
}  # fmt: skip


def sizes(M, *widths):
    """The sizes of the case from its rows and widths."""
    return {"M": M, "LAYERS": len(widths) - 1} | {f"N{i}": (*widths, 1, 1, 1)[i] for i in range(5)}


LARGEST = {"M": 40, "LAYERS": 4, "N0": 200, "N1": 100, "N2": 80, "N3": 60, "N4": 40}
LONG = "N0"
ODD, SQUARE = sizes(37, 13, 131, 67, 5), sizes(48, 48, 48, 48, 48)
F, H = "fused, library", "hidden stored"
SIGMOID, RELU = {"last": "sigmoid"}, {"last": "relu"}


def with_(**hooks):
    return partial(fused, **hooks)


def whole(change):
    return lambda *inputs: change(fused(*inputs))


def by_blocks(case, x, *layers):
    """Layer 2 begun before layer 1 has its whole row: relu of parts of sums."""
    W1, b1, W2, b2, W3, b3 = map(wide, layers)
    h = relu(wide(x)[:, :8] @ W1[:8] + b1) + relu(wide(x)[:, 8:] @ W1[8:])
    return store(case, relu(h @ W2 + b2) @ W3 + b3)


MISTAKES = {
    "x by way of float16": Mistake(given(fused, 0, half), H, ODD, "bfloat16", inputs="wide"),
    "dropout left in": Mistake(lambda case, x, *layers: fused(case, dropped(wide(x)), *layers), F, ODD),
    "relu 0 below 1e-3": Mistake(with_(between=lambda z: np.where(z > np.float32(1e-3), z, np.float32(0))), F, ODD),
    "last 16 hidden values in 8 bits": Mistake(
        with_(hidden=lambda h: edit(h, np.s_[:, -16:], fp8(h[:, -16:]))), H, ODD, "float16"),
    "relu of parts of a sum": Mistake(by_blocks, F, ODD),
    "relu of the last layer": Mistake(with_(last="relu"), F, ODD),
    "no relu at the end": Mistake(with_(last="none"), F, ODD, options=RELU),
    "no sigmoid at the end": Mistake(with_(last="none"), F, ODD, options=SIGMOID),
    "sigmoid in every layer": Mistake(with_(between=lambda z: activate("sigmoid", z)), F, ODD, options=SIGMOID),
    "relu between layers forgotten": Mistake(with_(between=same), F, ODD),
    "gelu for relu": Mistake(with_(between=lambda z: activate("gelu_tanh", z)), F, ODD),
    "relu loses NaN": Mistake(with_(between=lambda z: np.fmax(z, np.float32(0))), F, ODD, inputs="nan"),
    "relu as a product: -inf times 0": Mistake(
        with_(act=lambda _, z: z * (z > 0)), F, sizes(37, 70, 41), options=RELU, inputs="inf"),
    "biases forgotten": Mistake(with_(bias=lambda i, b: 0 * b), F, ODD),
    "bias of the last layer forgotten": Mistake(with_(bias=lambda i, b: b * np.float32(i < 2)), F, ODD),
    "bias of the first layer in all": Mistake(
        lambda case, x, W1, b1, W2, b2, W3, b3: fused(case, x, W1, b1, W2, b1, W3, b1), F, SQUARE),
    "first two layers swapped": Mistake(
        lambda case, x, W1, b1, W2, b2, W3, b3: fused(case, x, W2, b2, W1, b1, W3, b3), F, SQUARE),
    "a layer left out": Mistake(lambda case, x, W1, b1, W2, b2, W3, b3: fused(case, x, W1, b1, W3, b3), F, SQUARE),
    "W transposed": Mistake(lambda case, x, W1, *rest: fused(case, x, W1.T, *rest), F, SQUARE),
    "layout of W ignored": Mistake(
        lambda case, x, *layers: fused(case, x, *(a.T for a in layers)), F, SQUARE, options={"w_layout": "nk"}),
    "last hidden column missing": Mistake(with_(hidden=lambda h: edit(h, np.s_[:, -1], 0)), F, ODD),
    "hidden columns past the last whole block missing": Mistake(
        with_(hidden=lambda h: edit(h, np.s_[:, h.shape[1] // 64 * 64 :], 0)), F, ODD),
    "last K missing": Mistake(with_(first=lambda x: edit(x, np.s_[:, -1], 0)), F, ODD),
    "rows of the tile mixed": Mistake(with_(hidden=lambda h: np.roll(h, 1, axis=0)), F, ODD),
    "float16 accumulation": Mistake(partial(hidden_stored, product=half_sums), H, ODD, "float16"),
    "hidden in float16": Mistake(with_(hidden=lambda h: wide(h.astype(np.float16))), F, ODD),
    "hidden stored but not declared": Mistake(hidden_stored, "fused, by exp", ODD, "bfloat16"),
    "hidden stored but not declared, float16": Mistake(hidden_stored, "fused, by exp", ODD, "float16"),
    "products stored but not declared": Mistake(staged, H, sizes(60, 30, 40, 150), "bfloat16"),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), F, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), F, ODD),
    "tf32 between layers where ieee was asked": Mistake(with_(hidden=tf32_nearest), F, ODD),
    "bfloat16 where tf32 was asked": Mistake(with_(product=of(bfloat16_cut)), "fused, tf32 cut off", ODD, precision="tf32"),
    "sigmoid in float16": Mistake(
        with_(act=lambda n, z: wide(activate("sigmoid", z).astype(np.float16))), F, ODD, options=SIGMOID),
    "hard sigmoid": Mistake(
        with_(act=lambda n, z: np.clip(z / 6 + np.float32(0.5), 0, 1)), F, ODD, options=SIGMOID),
    "last row missing": Mistake(whole(lambda y: edit(y, -1, 0)), F, ODD),
    "last column missing": Mistake(whole(lambda y: edit(y, np.s_[:, -1], 0)), F, ODD),
    "transposed": Mistake(whole(lambda y: y.T.copy()), F, SQUARE),
    "zeros": Mistake(whole(np.zeros_like), F, ODD),
    "first output again": Mistake(first_again(fused), F, ODD, calls=2),
}  # fmt: skip
