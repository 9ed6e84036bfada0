"""lora_mlp: layers h @ W + b + scale * (h @ A) @ B with ReLU between them, and a last activation."""

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
    relu,
    same,
    store,
    tf32_cut,
    tf32_nearest,
    wide,
)

STAGED = ("product", "bias", "xa", "xab", "scaled", "sum")


def layers_of(arrays):
    return [arrays[i : i + 4] for i in range(0, len(arrays), 4)]


def chain(case, x, scale, layers, product=library, act=activate, middle=same, hidden=same, between=relu, factor=lambda i, s: wide(s),
          bias=lambda i, b: wide(b), last=None):  # fmt: skip
    """All in float32; `middle` is what becomes of x @ A before it meets B, `hidden` of a layer's output on its way to the next."""
    h = wide(x)
    for i, (W, b, A, B) in enumerate(layers):
        adapter = product(middle(product(h, wide(A))), wide(B))
        z = product(h, columns(case, W)) + bias(i, b) + factor(i, scale) * adapter
        h = hidden(between(z)) if i + 1 < len(layers) else z
    return store(case, act(case.options["last"] if last is None else last, h))


def fused(case, x, scale, *arrays, **hooks):
    return chain(case, x, scale, layers_of(arrays), **hooks)


def stored(case, *inputs, product=library, **hooks):
    """x @ A stored, for the tensor cores, and what goes to the next layer."""
    k = partial(keep, case)
    return fused(case, *inputs, product=product, middle=k, hidden=k, **hooks)


def staged(case, x, scale, *arrays, product=library, step=same):
    """Torch's operators, bias apart."""
    k = partial(keep, case)
    h, layers = wide(x), layers_of(arrays)
    for i, (W, b, A, B) in enumerate(layers):
        straight = k(k(product(h, columns(case, W))) + wide(b))
        adapter = k(product(k(product(h, wide(A))), wide(B)))
        z = k(straight + k(wide(scale) * adapter))
        h = relu(z) if i + 1 < len(layers) else z
    return store(case, activate(case.options["last"], h, step))


def four_at_most(case):
    """No more layers than the kernel has names for."""
    return case.sizes["LAYERS"] <= 4


def when(test):
    return lambda case: test(case) and four_at_most(case)


CORRECT = {
    **{f"fused, {n}": Program(partial(fused, product=p), (), when(is_ieee)) for n, p in PRODUCTS.items()},
    **{f"fused, {n}": Program(partial(fused, product=p), (), when(is_tf32)) for n, p in TF32.items()},
    "fused, by exp": Program(partial(fused, act=activate_exp), (), four_at_most),
    **{f"stored, {n}": Program(partial(stored, product=p), ("xa", "hidden"), when(is_16)) for n, p in TENSOR_CORES.items()},
    "stored": Program(stored, ("xa", "hidden"), four_at_most),
    "staged": Program(staged, STAGED, four_at_most),
    "subnormals flushed": Program(
        lambda case, *a: flush(fused(case, *map(flush, a), hidden=flush)), ("subnormals",), when(is_32)),
}  # fmt: skip


def sizes(M, R, *widths):
    """The sizes of the case from its rows, rank and widths."""
    return {"M": M, "LAYERS": len(widths) - 1, "R": R} | {f"N{i}": (*widths, 1, 1, 1)[i] for i in range(5)}


LARGEST = {"M": 40, "LAYERS": 4, "N0": 200, "N1": 100, "N2": 80, "N3": 60, "N4": 40, "R": 16}
LONG = "N0"
ODD, SQUARE = sizes(37, 13, 29, 131, 67, 23), sizes(48, 48, 48, 48, 48, 48)
F, S = "fused, library", "stored"
SIGMOID, RELU = {"last": "sigmoid"}, {"last": "relu"}


def with_(**hooks):
    return partial(fused, **hooks)


def whole(change):
    return lambda *inputs: change(fused(*inputs))


def layered(change):
    """The layers as `change` makes them of (W, b, A, B) by layer."""
    return lambda case, x, scale, *arrays: chain(case, x, scale, change(layers_of(arrays)))


def adapters(order):
    """The adapters of the layers in another order."""
    return layered(lambda of: [(W, b, *of[j][2:]) for (W, b, _, _), j in zip(of, order, strict=True)])


def bias_first(case, x, scale, *arrays):
    """The bias added to what the adapter multiplies."""
    h, layers = wide(x), layers_of(arrays)
    for i, (W, b, A, B) in enumerate(layers):
        z = h @ columns(case, W) + wide(b)
        z = z + wide(scale) * ((h @ wide(A)) @ wide(B) + wide(b))
        h = relu(z) if i + 1 < len(layers) else z
    return store(case, h)


def relu_before_adapter(case, x, scale, *arrays):
    h, layers = wide(x), layers_of(arrays)
    for i, (W, b, A, B) in enumerate(layers):
        straight = h @ columns(case, W) + wide(b)
        straight = relu(straight) if i + 1 < len(layers) else straight
        h = straight + wide(scale) * ((h @ wide(A)) @ wide(B))
    return store(case, h)


def first_input_to_all(case, x, scale, *arrays):
    """Every adapter sees x instead of what the layer before made."""
    h, layers = wide(x), layers_of(arrays)
    for i, (W, b, A, B) in enumerate(layers):
        z = h @ columns(case, W) + wide(b) + wide(scale) * ((wide(x) @ wide(A)) @ wide(B))
        h = relu(z) if i + 1 < len(layers) else z
    return store(case, h)


def fixed_scale():
    first = []

    def run(case, x, scale, *arrays):
        first.append(scale)
        return fused(case, x, first[0], *arrays)

    return run


MISTAKES = {
    "x by way of float16": Mistake(given(fused, 0, half), S, ODD, "bfloat16", inputs="wide"),
    "scale taken for positive": Mistake(given(fused, 1, np.abs), F, ODD, inputs="scalar"),
    "scale forgotten": Mistake(with_(factor=lambda i, s: np.float32(1)), F, ODD),
    "scale forgotten in the last layer": Mistake(with_(factor=lambda i, s: wide(s) if i < 2 else np.float32(1)), F, ODD),
    "scale forgotten in the first layer, bfloat16": Mistake(
        partial(stored, factor=lambda i, s: wide(s) if i else np.float32(1)), S, ODD, "bfloat16"),
    "scale of 0.5 whatever is asked": Mistake(with_(factor=lambda i, s: np.float32(0.5)), F, ODD),
    "scale fixed at the first value": Mistake(fixed_scale(), F, ODD, calls=2),
    "scale squared": Mistake(with_(factor=lambda i, s: wide(s) ** 2), F, ODD),
    "scale of a layer more for each layer": Mistake(with_(factor=lambda i, s: wide(s) ** (i + 1)), F, ODD),
    "scale divided by the rank": Mistake(with_(factor=lambda i, s: wide(s) / np.float32(13)), F, ODD),
    "scale in float16": Mistake(with_(factor=lambda i, s: wide(np.asarray(s).astype(np.float16))), F, ODD),
    "adapters forgotten": Mistake(with_(factor=lambda i, s: np.float32(0)), F, ODD),
    "adapter of the last layer forgotten": Mistake(with_(factor=lambda i, s: wide(s) * np.float32(i < 2)), F, ODD),
    "adapters of the first two layers swapped": Mistake(adapters((1, 0, 2)), F, SQUARE),
    "adapter of the first layer in all": Mistake(adapters((0, 0, 0)), F, SQUARE),
    "adapter of the layer before": Mistake(adapters((0, 0, 1)), F, SQUARE),
    "A and B in the other order": Mistake(layered(lambda of: [(W, b, B, A) for W, b, A, B in of]), F, SQUARE),
    "A transposed": Mistake(layered(lambda of: [(W, b, A.T, B) for W, b, A, B in of]), F, SQUARE),
    "B transposed": Mistake(layered(lambda of: [(W, b, A, B.T) for W, b, A, B in of]), F, SQUARE),
    "B of another layer": Mistake(
        layered(lambda of: [(W, b, A, of[i - 1][3]) for i, (W, b, A, _) in enumerate(of)]), F, SQUARE),
    "adapters of x in all layers": Mistake(first_input_to_all, F, SQUARE),
    "bias inside the adapter": Mistake(bias_first, F, ODD),
    "biases forgotten": Mistake(with_(bias=lambda i, b: 0 * wide(b)), F, ODD),
    "bias of the last layer forgotten": Mistake(with_(bias=lambda i, b: wide(b) * np.float32(i < 2)), F, ODD),
    "bias of the first layer in all": Mistake(layered(lambda of: [(W, of[0][1], A, B) for W, _, A, B in of]), F, SQUARE),
    "relu between layers forgotten": Mistake(with_(between=same), F, ODD),
    "relu before the adapter": Mistake(relu_before_adapter, F, ODD),
    "relu of x @ A": Mistake(with_(middle=relu), F, ODD),
    "relu of the last layer": Mistake(with_(last="relu"), F, ODD),
    "no relu at the end": Mistake(with_(last="none"), F, ODD, options=RELU),
    "no sigmoid at the end": Mistake(with_(last="none"), F, ODD, options=SIGMOID),
    "sigmoid in every layer": Mistake(with_(between=lambda z: activate("sigmoid", z)), F, ODD, options=SIGMOID),
    "relu loses NaN between layers": Mistake(with_(between=lambda z: np.fmax(z, np.float32(0))), F, ODD, inputs="nan"),
    "relu loses NaN at the end": Mistake(with_(act=loses_nan), F, sizes(37, 13, 70, 41), options=RELU, inputs="nan"),
    "last rank missing": Mistake(with_(middle=lambda xa: edit(xa, np.s_[:, -1], 0)), F, ODD),
    "ranks past 8 missing": Mistake(with_(middle=lambda xa: edit(xa, np.s_[:, 8:], 0)), F, ODD),
    "last hidden column missing": Mistake(with_(hidden=lambda h: edit(h, np.s_[:, -1], 0)), F, ODD),
    "rows of the tile mixed": Mistake(with_(hidden=lambda h: np.roll(h, 1, axis=0)), F, ODD),
    "first two layers swapped": Mistake(layered(lambda of: [of[1], of[0], *of[2:]]), F, SQUARE),
    "a layer left out": Mistake(layered(lambda of: [*of[:1], *of[2:]]), F, SQUARE),
    "layout of W ignored": Mistake(
        layered(lambda of: [(W.T, b, A, B) for W, b, A, B in of]), F, SQUARE, options={"w_layout": "nk"}),
    "float16 accumulation": Mistake(partial(stored, product=half_sums), S, ODD, "float16"),
    "x @ A in float16": Mistake(with_(middle=lambda xa: wide(xa.astype(np.float16))), F, ODD),
    "hidden in float16": Mistake(with_(hidden=lambda h: wide(h.astype(np.float16))), F, ODD),
    "stored but not declared": Mistake(stored, "fused, by exp", ODD, "bfloat16"),
    "stored but not declared, float16": Mistake(stored, "fused, by exp", ODD, "float16"),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), F, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), F, ODD),
    "bfloat16 where tf32 was asked": Mistake(with_(product=of(bfloat16_cut)), "fused, tf32 cut off", ODD, precision="tf32"),
    "last row missing": Mistake(whole(lambda y: edit(y, -1, 0)), F, ODD),
    "last column missing": Mistake(whole(lambda y: edit(y, np.s_[:, -1], 0)), F, ODD),
    "transposed": Mistake(whole(lambda y: y.T.copy()), F, SQUARE),
    "zeros": Mistake(whole(np.zeros_like), F, ODD),
    "first output again": Mistake(first_again(fused), F, ODD, calls=2),
}  # fmt: skip
