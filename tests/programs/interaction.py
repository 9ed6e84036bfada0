"""interaction: dots of all pairs of vectors, or the outer product of all values."""

from functools import partial

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import (
    PRODUCTS,
    TENSOR_CORES,
    TF32,
    bfloat16_cut,
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
    sequential,
    store,
    tf32_cut,
    tf32_nearest,
    wide,
)


def dot(case, dense, sparse, product=library, pairs=None):
    """dense, then the products of pairs i > j. The dense values are copied, whatever becomes of the products."""
    stack = np.concatenate([wide(dense)[:, None], wide(sparse)], axis=1)
    i, j = pairs(stack.shape[1]) if pairs else np.tril_indices(stack.shape[1], -1)
    return store(case, np.hstack([wide(dense), product(stack, stack.swapaxes(1, 2))[:, i, j]]))


def pair_by_pair(case, dense, sparse):
    vectors = [wide(dense), *np.moveaxis(wide(sparse), 1, 0)]
    products = [sequential(vectors[i] * vectors[j]) for i in range(len(vectors)) for j in range(i)]
    return store(case, np.hstack([vectors[0], *products]))


def outer(case, dense, sparse, product=np.multiply):
    x = np.hstack([wide(dense), wide(sparse).reshape(len(dense), -1)])
    return store(case, product(x[:, :, None], x[:, None, :]).reshape(len(dense), -1))


def interact(case, dense, sparse, **hooks):
    return (dot if case.options["form"] == "dot" else outer)(case, dense, sparse, **hooks)


def flushed(case, dense, sparse):
    """Products flush, a copy does not."""
    y = flush(interact(case, flush(dense), flush(sparse)))
    return edit(y, np.s_[:, : dense.shape[1]], dense) if is_dot(case) else y


def is_dot(case):
    return case.options["form"] == "dot"


def both(*tests):
    return lambda case: all(test(case) for test in tests)


CORRECT = {
    "outer": Program(outer, (), lambda case: not is_dot(case)),
    **{f"dot, {n}": Program(partial(dot, product=p), (), both(is_dot, is_ieee)) for n, p in PRODUCTS.items()},
    **{f"dot, {n}": Program(partial(dot, product=p), (), both(is_dot, is_16)) for n, p in TENSOR_CORES.items()},
    **{f"dot, {n}": Program(partial(dot, product=p), (), both(is_dot, is_tf32)) for n, p in TF32.items()},
    "dot, pair by pair": Program(pair_by_pair, (), is_dot),
    "subnormals flushed": Program(flushed, ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"M": 20, "F": 12, "D": 40}
ODD, SQUARE = {"M": 37, "F": 5, "D": 7}, {"M": 6, "F": 6, "D": 6}
WIDE = {"M": 13, "F": 9, "D": 70}
OUTER = {"form": "outer"}
D, X = "dot, library", "outer"


def paired(pairs):
    return partial(dot, pairs=pairs)


def whole(change):
    return lambda *inputs: change(interact(*inputs))


def swapped(pairs):
    return pairs[1], pairs[0]


MISTAKES = {
    "sparse by way of float16": Mistake(given(CORRECT[D].run, 1, half), D, ODD, "bfloat16", inputs="wide"),
    "the last two pairs exchanged": Mistake(whole(lambda y: edit(y, np.s_[:, [-1, -2]], y[:, [-2, -1]])), D, ODD),
    "upper triangle, row by row": Mistake(paired(lambda n: np.triu_indices(n, 1)), D, ODD),
    "lower triangle, column by column": Mistake(paired(lambda n: swapped(np.triu_indices(n, 1))), D, ODD),
    "diagonal for the last of each row": Mistake(
        paired(lambda n: (np.tril_indices(n, -1)[0], np.tril_indices(n, -1)[1] + 1)), D, ODD),
    "pairs of the next vector": Mistake(
        paired(lambda n: ((np.tril_indices(n, -1)[0] + 1) % n, np.tril_indices(n, -1)[1])), D, ODD),
    "dense as the last vector": Mistake(
        lambda case, d, s: np.hstack([d, dot(case, s[:, -1], np.concatenate([s[:, :-1], d[:, None]], axis=1))[:, d.shape[1] :]]),
        D, ODD),
    "dense left out of the products": Mistake(lambda case, d, s: np.hstack([d, dot(case, 0 * d, s)[:, d.shape[1] :]]), D, ODD),
    "products before dense": Mistake(whole(lambda y: np.roll(y, -7, axis=1)), D, ODD),
    "dense missing": Mistake(whole(lambda y: edit(y, np.s_[:, :7], 0)), D, ODD),
    "dense stored through tf32": Mistake(whole(lambda y: edit(y, np.s_[:, :7], tf32_cut(y[:, :7]))), D, ODD),
    "last value of a vector missing": Mistake(
        lambda case, d, s: np.hstack([d, dot(case, edit(d, np.s_[:, -1], 0), s)[:, d.shape[1] :]]), D, ODD),
    "last K-block missing": Mistake(partial(dot, product=lambda a, b: a[..., :64] @ b[..., :64, :]), D, WIDE),
    "last vector missing": Mistake(lambda case, d, s: dot(case, d, edit(s, np.s_[:, -1], 0)), D, ODD),
    "last pair missing": Mistake(whole(lambda y: edit(y, np.s_[:, -1], 0)), D, ODD),
    "last sample missing": Mistake(whole(lambda y: edit(y, -1, 0)), D, ODD),
    "a sample's vectors with the next one's": Mistake(lambda case, d, s: dot(case, d, np.roll(s, 1, axis=0)), D, ODD),
    "features and width swapped": Mistake(lambda case, d, s: dot(case, d, s.swapaxes(1, 2).copy()), D, SQUARE),
    "sums in float16": Mistake(partial(dot, product=half_sums), "dot, tensor core of 8", WIDE, "float16"),
    "sums in float16 of float32": Mistake(partial(dot, product=half_sums), D, WIDE),
    "sums in bfloat16": Mistake(
        lambda case, d, s: dot(case, d, s, product=lambda a, b: keep(case, keep(case, a[..., :35] @ b[..., :35, :])
                                                                + a[..., 35:] @ b[..., 35:, :])),
        "dot, tensor core of 8", WIDE, "bfloat16"),
    "tf32 where ieee was asked": Mistake(partial(dot, product=of(tf32_nearest)), D, ODD),
    "tf32 where ieee was asked, cut off": Mistake(partial(dot, product=of(tf32_cut)), D, ODD),
    "bfloat16 where tf32 was asked": Mistake(
        partial(dot, product=of(bfloat16_cut)), "dot, tf32 cut off", WIDE, precision="tf32"),
    "scaled by 1/sqrt(D)": Mistake(partial(dot, product=lambda a, b: a @ b / np.float32(np.sqrt(a.shape[-1]))), D, ODD),
    "zeros": Mistake(whole(np.zeros_like), D, ODD),
    "first output again": Mistake(first_again(interact), D, ODD, calls=2),
    "outer: sum for product": Mistake(partial(outer, product=np.add), X, ODD, options=OUTER),
    "outer: features with themselves alone": Mistake(
        whole(lambda y: (y.reshape(37, 42, 42) * np.kron(np.eye(6), np.ones((7, 7)))).reshape(37, -1).astype(y.dtype)), X, ODD,
        options=OUTER),
    "outer: lower triangle alone": Mistake(
        whole(lambda y: np.tril(y.reshape(37, 42, 42)).reshape(37, -1)), X, ODD, options=OUTER),
    "outer: rows one too long": Mistake(whole(lambda y: np.roll(y, 1, axis=1)), X, ODD, options=OUTER),
    "outer: dense after the features": Mistake(
        lambda case, d, s: outer(case, s[:, 0], np.concatenate([s[:, 1:], d[:, None]], axis=1)), X, ODD, options=OUTER),
    "outer: tf32 where ieee was asked": Mistake(
        partial(outer, product=lambda a, b: tf32_cut(a) * tf32_cut(b)), X, ODD, options=OUTER),
    "outer: bits dropped at the end": Mistake(
        lambda case, d, s: store(case, bfloat16_cut(
            (lambda x: x[:, :, None] * x[:, None, :])(np.hstack([wide(d), wide(s).reshape(len(d), -1)])).reshape(len(d), -1))),
        X, ODD, "bfloat16", options=OUTER),
    "outer: last value missing": Mistake(
        whole(lambda y: edit(y, np.s_[:, -1], 0)), X, ODD, options=OUTER),
}  # fmt: skip
