"""shcsa: one Dense to q, k and v, then attention with left padding."""

from functools import partial

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import (
    PRODUCTS,
    TENSOR_CORES,
    TF32,
    columns,
    edit,
    first_again,
    half_sums,
    is_16,
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
from programs.padded_attention import attend, divided_at_the_end, flash, visible
from programs.softmax import from_zero, softmax


def thirds(qkv):
    return np.split(qkv, 3, axis=1)


def layer(
    case, x, n_padd, W, b, product=library, attention=attend, parts=thirds, middle=same, bias=wide, rows=same, **hooks
):
    """`middle` is what becomes of q, k and v between the two launches."""
    W = columns(case, W)
    q, k, v = parts(middle(product(rows(wide(x)), W) + bias(b)))
    return store(case, attention(q, k, v, n_padd, product=product, **hooks))


def two_launches(case, *inputs, **hooks):
    """q, k and v stored, and the probabilities for the tensor cores."""
    k = partial(keep, case)
    return layer(case, *inputs, middle=k, weighed=k, **hooks)


def staged(case, x, n_padd, W, b, product=library):
    """Torch's operators."""
    k = partial(keep, case)
    W = columns(case, W)
    q, key, v = thirds(k(k(product(wide(x), W)) + wide(b)))
    shown = visible(len(x), n_padd)
    kept = (np.arange(len(x)) >= n_padd)[:, None]
    key, v = np.where(kept, key, np.float32(0)), np.where(kept, v, np.float32(0))
    scores = k(k(product(q, key.T)) * np.float32(q.shape[1] ** -0.5))
    probabilities = k(np.where(shown, softmax(np.where(shown, scores, -np.inf)), np.float32(0)))
    return store(case, product(probabilities, v))


CORRECT = {
    **{f"in float32, {n}": Program(partial(layer, product=p), (), is_ieee) for n, p in PRODUCTS.items()},
    **{f"in float32, {n}": Program(partial(layer, product=p), (), is_tf32) for n, p in TF32.items()},
    "flash": Program(partial(layer, attention=flash), (), is_ieee),
    "divided at the end": Program(partial(layer, attention=divided_at_the_end), (), is_ieee),
    "in float32, 16 bits": Program(layer, (), is_16),
    **{f"two launches, {n}": Program(partial(two_launches, product=p), ("bias", "probabilities"), is_16)
       for n, p in TENSOR_CORES.items()},
    "staged": Program(staged, ("product", "bias", "scores", "scaled", "probabilities")),
}  # fmt: skip

LARGEST = {"T": 50, "C": 120, "D": 30}
LONG = "C"
ODD, SQUARE = {"T": 37, "C": 53, "D": 19}, {"T": 24, "C": 72, "D": 24}
L, T = "in float32, library", "two launches, tensor core of 8"


def with_(**hooks):
    return partial(layer, **hooks)


def mask(test):
    """Another mask: test(i, j, n_padd)."""
    return with_(seen=lambda T, n: test(np.arange(T)[:, None], np.arange(T), n), clean=lambda a, n: wide(a))


def clean(arrays):
    """Numbers where NaN was: a mistake must show without it."""
    return arrays | {"x": np.where(np.isnan(arrays["x"]), 1, arrays["x"]).astype(arrays["x"].dtype)}


def whole(change):
    return lambda case, x, n, W, b: store(case, change(wide(layer(case, x, n, W, b)), int(n)))


def fixed_padding():
    first = []

    def run(case, x, n_padd, W, b):
        first.append(int(n_padd))
        return layer(case, x, first[0], W, b, clean=lambda a, n: wide(a))

    return run


def order(*at):
    """Another order of the three parts."""
    return lambda qkv: [thirds(qkv)[i] for i in at]


MISTAKES = {
    "order k, q, v": Mistake(with_(parts=order(1, 0, 2)), L, ODD),
    "order v, k, q": Mistake(with_(parts=order(2, 1, 0)), L, ODD),
    "order q, v, k": Mistake(with_(parts=order(0, 2, 1)), L, ODD),
    "columns of q, k and v alternate": Mistake(with_(parts=lambda qkv: [qkv[:, i::3] for i in range(3)]), L, ODD),
    "bias forgotten": Mistake(with_(bias=lambda b: 0 * wide(b)), L, ODD),
    "bias of q in all": Mistake(with_(bias=lambda b: np.tile(wide(b)[: len(b) // 3], 3)), L, ODD),
    "bias of v forgotten": Mistake(with_(bias=lambda b: edit(wide(b), np.s_[len(b) // 3 * 2 :], 0)), L, ODD),
    "last C missing": Mistake(with_(rows=lambda x: edit(x, np.s_[:, -1], 0)), L, ODD, change=clean),
    "last block of C missing": Mistake(with_(rows=lambda x: edit(x, np.s_[:, 48:], 0)), L, ODD, change=clean),
    "maximum that begins at 0": Mistake(with_(of_rows=partial(softmax, top=from_zero)), L, ODD, inputs="large"),
    "-1e6 as a mask": Mistake(with_(of_rows=lambda s: softmax(np.maximum(s, np.float32(-1e6)))), L, ODD, inputs="large"),
    "padding ignored": Mistake(mask(lambda i, j, n: (j <= i) & (n <= i)), L, ODD, change=clean),
    "not causal": Mistake(mask(lambda i, j, n: (n <= j) & (n <= i)), L, ODD, change=clean),
    "mask one short: j < i": Mistake(mask(lambda i, j, n: (n <= j) & (j < i)), L, ODD, change=clean),
    "mask one long: j <= i + 1": Mistake(mask(lambda i, j, n: (n <= j) & (j <= i + 1) & (n <= i)), L, ODD, change=clean),
    "padding fixed at the first value": Mistake(fixed_padding(), L, ODD, change=clean, calls=2, options={"padding": "any"}),
    "padding made 0 before the bias": Mistake(
        lambda case, x, n, W, b: layer(case, edit(x, np.s_[:n], 0), 0, W, b), L, ODD),
    "NaN of padding times 0": Mistake(with_(clean=lambda a, n: wide(a)), L, ODD),
    "padding rows NaN": Mistake(whole(lambda y, n: edit(y, np.s_[:n], np.nan)), L, ODD),
    "padding rows of the bias": Mistake(
        lambda case, x, n, W, b: edit(layer(case, x, n, W, b), np.s_[:n], b[-19:]), L, ODD),
    "scale of C for D": Mistake(with_(scale=53**-0.5), L, ODD),
    "scale forgotten": Mistake(with_(scale=1), L, ODD),
    "not normalised": Mistake(with_(of_rows=partial(softmax, total=lambda e: np.float32(1))), L, ODD),
    "earlier blocks not scaled down": Mistake(with_(attention=partial(flash, rescale=False)), "flash", ODD),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), L, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), L, ODD),
    "float16 accumulation": Mistake(partial(two_launches, product=half_sums), T, ODD, "float16"),
    "q, k and v stored, not declared": Mistake(two_launches, "in float32, 16 bits", ODD, "bfloat16"),
    "layout of W ignored": Mistake(
        lambda case, x, n, W, b: layer(case, x, n, W.T, b), L, SQUARE, options={"w_layout": "nk"}),
    "last row missing": Mistake(whole(lambda y, n: edit(y, -1, 0)), L, ODD),
    "last column missing": Mistake(whole(lambda y, n: edit(y, np.s_[:, -1], 0)), L, ODD),
    "transposed": Mistake(whole(lambda y, n: y.T.copy()), L, SQUARE),
    "zeros": Mistake(whole(lambda y, n: 0 * y), L, ODD),
    "no padding taken for 4": Mistake(
        mask(lambda i, j, n: (np.where(n == 0, 4, n) <= j) & (j <= i)), L, ODD, inputs="lower_edge"),
    "all padding: the last row sees itself": Mistake(
        mask(lambda i, j, n: (np.minimum(n, len(i) - 1) <= j) & (j <= i)), L, ODD, change=clean, inputs="upper_edge"),
    "first output again": Mistake(first_again(layer), L, ODD, calls=2),
}  # fmt: skip
