"""dlrm: a perceptron, look-ups, dots or outer products, a perceptron and a sigmoid."""

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
    edit,
    first_again,
    flush,
    half_sums,
    is_16,
    is_32,
    is_ieee,
    is_tf32,
    keep,
    library,
    of,
    relu,
    same,
    store,
    tf32_cut,
    tf32_nearest,
    wide,
)
from programs.embedding import gather
from programs.embedding import lookup as looked_up_place


def perceptron(h, layers, product, between, hidden, bias, value=same):
    """The last layer's sums. `value` is what becomes of each product and each sum, `hidden` of what goes on to the next layer."""
    for i in range(0, len(layers), 2):
        z = value(value(product(h, layers[i])) + bias(i // 2, layers[i + 1]))
        h = hidden(between(z)) if i + 2 < len(layers) else z
    return h


def model(
    case, dense, ids, tables, offsets, *rest, product=library, between=relu, hidden=same, value=same, crossed=same, act=activate,
    last="sigmoid", vector=same, pairs=None, bias=lambda part, i, b: b, look=None, change=None, base=None, into=same, times=np.multiply,
    own=same, found=same,
):  # fmt: skip
    """y (M, 1). `vector` is what becomes of the dense vector, `into` of it on its way into the products, `own` on its way beside them,
    `found` of the vectors that were looked up, `crossed` of the interaction."""
    bottom = 2 * case.sizes["LAYERS"]
    top = bottom + 2 * min(case.sizes["LAYERS"], 3)
    layers, known = [wide(a) for a in rest[:top]], rest[top] if len(rest) > top else None
    x = perceptron(wide(dense), layers[:bottom], product, between, hidden, partial(bias, "bottom"), value)
    x = vector(hidden(x))
    sparse = found(wide(gather(case, ids, tables, offsets, known, look=look, change=change, base=base)))
    stack = np.concatenate([into(x)[:, None], sparse], axis=1)
    if case.options["interaction"] == "outer":
        flat = stack.reshape(len(x), -1)
        rows = crossed(times(flat[:, :, None], flat[:, None, :]).reshape(len(x), -1))
    else:
        i, j = pairs(stack.shape[1]) if pairs else np.tril_indices(stack.shape[1], -1)
        rows = np.hstack([own(x), crossed(product(stack, stack.swapaxes(1, 2))[:, i, j])])
    z = perceptron(rows, layers[bottom:], product, between, hidden, partial(bias, "top"), value)
    return store(case, act(last, z))


def with_(**hooks):
    return partial(model, **hooks)


def hidden_stored(case, *inputs, product=library):
    """What goes from launch to launch in 16 bits."""
    return model(case, *inputs, product=product, hidden=partial(keep, case), crossed=partial(keep, case))


def staged(case, *inputs, step=same):
    k = partial(keep, case)
    return model(case, *inputs, value=k, hidden=k, crossed=k, act=lambda name, z: activate(name, z, step))


def flushed(case, dense, ids, tables, offsets, *rest):
    return flush(model(case, flush(dense), ids, flush(tables), offsets, *rest, hidden=flush, crossed=flush))


def four_at_most(case):
    """No more layers than the kernel has names for."""
    return case.sizes["LAYERS"] <= 4


def when(test):
    return lambda case: test(case) and four_at_most(case)


CORRECT = {
    **{f"fused, {n}": Program(with_(product=p), (), when(is_ieee)) for n, p in PRODUCTS.items()},
    **{f"fused, {n}": Program(with_(product=p), (), when(is_tf32)) for n, p in TF32.items()},
    "fused, by exp": Program(with_(act=activate_exp), (), four_at_most),
    **{f"hidden stored, {n}": Program(partial(hidden_stored, product=p), ("hidden", "interaction"), when(is_16))
       for n, p in TENSOR_CORES.items()},
    "hidden stored": Program(hidden_stored, ("hidden", "interaction"), four_at_most),
    "staged": Program(staged, ("product", "bias", "interaction"), four_at_most),
    "subnormals flushed": Program(flushed, ("subnormals",), when(is_32)),
}  # fmt: skip

LARGEST = {"M": 30, "F": 6, "V": 200, "D": 9, "LAYERS": 4, "N0": 30, "N1": 50, "N2": 40, "N3": 30, "P1": 40, "P2": 30}
ODD = {"M": 37, "F": 5, "V": 211, "D": 7, "LAYERS": 3, "N0": 13, "N1": 67, "N2": 33, "N3": 1, "P1": 41, "P2": 19}
F, H = "fused, library", "hidden stored"
OUTER, LOOKUP = {"interaction": "outer"}, {"hashing": "lookup"}


def whole(change):
    return lambda *inputs: change(model(*inputs))


def swapped(pairs):
    return pairs[1], pairs[0]


def without_last(part):
    """The bias of the part's last layer of three forgotten."""
    return lambda p, i, b: b * np.float32(p != part or i < 2)


def missing(at):
    return lambda v: edit(v, at, 0)


def unknown_to_row_0(ids, offsets, known, f):
    place = looked_up_place(ids, offsets, known, f)
    return np.where(place == offsets[f + 1] - offsets[f] - 1, 0, place)


def unknown_to_last_known(ids, offsets, known, f):
    return np.minimum(looked_up_place(ids, offsets, known, f), max(int(offsets[f + 1] - offsets[f]) - 2, 0))


def unchecked(case, dense, ids, *rest):
    """An id past the end taken for one: its lower 32 bits."""
    return model(case, dense, ids % 2**32, *rest)


MISTAKES = {
    "upper triangle, row by row": Mistake(with_(pairs=lambda n: np.triu_indices(n, 1)), F, ODD),
    "lower triangle, column by column": Mistake(with_(pairs=lambda n: swapped(np.triu_indices(n, 1))), F, ODD),
    "diagonal for the last of each row": Mistake(
        with_(pairs=lambda n: (np.tril_indices(n, -1)[0], np.tril_indices(n, -1)[1] + 1)), F, ODD),
    "dense missing from the dots": Mistake(with_(into=np.zeros_like), F, ODD),
    "dense missing beside the dots": Mistake(with_(own=np.zeros_like), F, ODD),
    "dense features as they are, no perceptron": Mistake(
        lambda case, dense, *rest: model(case, dense, *rest, vector=lambda x: wide(dense)[:, : x.shape[1]]), F, ODD),
    "relu on the last bottom layer": Mistake(with_(vector=relu), F, ODD),
    "relu between layers forgotten": Mistake(with_(between=same), F, ODD),
    "sigmoid between layers": Mistake(with_(between=lambda z: activate("sigmoid", z)), F, ODD),
    "relu loses NaN": Mistake(with_(between=lambda z: np.fmax(z, np.float32(0))), F, ODD, inputs="nan"),
    "sigmoid forgotten": Mistake(with_(last="none"), F, ODD),
    "sigmoid twice": Mistake(with_(act=lambda n, z: activate(n, activate(n, z))), F, ODD),
    "sigmoid of the other sign": Mistake(with_(act=lambda n, z: activate(n, -z)), F, ODD),
    "sigmoid in float16": Mistake(with_(act=lambda n, z: wide(activate(n, z).astype(np.float16))), F, ODD),
    "biases forgotten": Mistake(with_(bias=lambda part, i, b: 0 * b), F, ODD),
    "bias of the last bottom layer forgotten": Mistake(with_(bias=without_last("bottom")), F, ODD),
    "bias of the last top layer forgotten": Mistake(with_(bias=without_last("top")), F, ODD),
    "id for id + 1": Mistake(with_(look=lambda i, o, k, f: i % (o[f + 1] - o[f])), F, ODD),
    "id + 2 for id + 1": Mistake(with_(look=lambda i, o, k, f: (i + 2) % (o[f + 1] - o[f])), F, ODD),
    "modulus of the largest table": Mistake(with_(look=lambda i, o, k, f: (i + 1) % int(np.diff(o).max())), F, ODD),
    "tables one row off": Mistake(with_(base=lambda o: o + 1), F, ODD),
    "all from the first table": Mistake(with_(base=lambda o: 0 * o), F, ODD),
    "features swapped": Mistake(with_(found=lambda v: v[:, ::-1]), F, ODD),
    "a feature missing": Mistake(with_(found=missing(np.s_[:, -1])), F, ODD),
    "last value of all vectors missing": Mistake(with_(found=missing(np.s_[..., -1])), F, ODD),
    "a sample's vectors with the next one's": Mistake(with_(found=lambda v: np.roll(v, 1, axis=0)), F, ODD),
    "an id past the end taken as one": Mistake(
        unchecked, F, ODD, change=lambda arrays: arrays | {"ids": edit(arrays["ids"], (3, 2), 2**32 + 5)}),
    "unknown to row 0": Mistake(with_(look=unknown_to_row_0), F, ODD, options=LOOKUP),
    "unknown to the last known": Mistake(with_(look=unknown_to_last_known), F, ODD, options=LOOKUP),
    "modulus where looked up was asked": Mistake(
        with_(look=lambda i, o, k, f: (i + 1) % (o[f + 1] - o[f])), F, ODD, options=LOOKUP),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), F, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), F, ODD),
    "bfloat16 where tf32 was asked": Mistake(
        with_(product=of(bfloat16_cut)), "fused, tf32 cut off", ODD, precision="tf32"),
    "float16 accumulation": Mistake(partial(hidden_stored, product=half_sums), H, ODD, "float16"),
    "tables in float16": Mistake(with_(found=lambda v: wide(v.astype(np.float16))), F, ODD),
    "interaction in bfloat16": Mistake(with_(crossed=bfloat16_cut), F, ODD),
    "outer: sum for product": Mistake(with_(times=np.add), F, ODD, options=OUTER),
    "outer: lower triangle alone": Mistake(
        with_(crossed=lambda y: np.tril(y.reshape(37, 42, 42)).reshape(37, -1)), F, ODD, options=OUTER),
    "outer: dense missing": Mistake(with_(into=np.zeros_like), F, ODD, options=OUTER),
    "outer: last share of the first layer missing": Mistake(
        with_(crossed=missing(np.s_[:, -42:])), F, ODD, options=OUTER),
    "last sample missing": Mistake(whole(missing(-1)), F, ODD),
    "the other probability": Mistake(whole(lambda y: 1 - y), F, ODD),
    "zeros": Mistake(whole(np.zeros_like), F, ODD),
    "first output again": Mistake(first_again(model), F, ODD, calls=2),
}  # fmt: skip
