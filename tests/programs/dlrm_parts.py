"""dlrm_parts: the model of programs/dlrm.py up to a part: a perceptron, the rows of ids, their vectors, dots or outer products."""

from functools import partial

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import (
    PRODUCTS,
    TENSOR_CORES,
    TF32,
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
    wide,
)
from programs.dlrm import LARGEST, ODD, four_at_most, perceptron, unknown_to_row_0, when
from programs.embedding import gather


def until(
    case, dense, ids, tables, offsets, *rest, product=library, between=relu, hidden=same, value=same, bias=lambda i, b: b, look=None,
    vector=same, found=same, to_rows=same, crossed=same, into=same,
):  # fmt: skip
    """`vector` is what becomes of the dense vector, `into` of it on its way to the products, `to_rows` of the table rows, `found` of
    what was looked up, `crossed` of the interaction."""
    bottom, part = 2 * case.sizes["LAYERS"], case.options["until"]
    known = rest[-1] if case.options["hashing"] == "lookup" else None
    x = vector(perceptron(wide(dense), [wide(a) for a in rest[:bottom]], product, between, hidden, bias, value))
    if part == "dense":
        return store(case, x)
    numbered = np.arange(len(tables))[:, None]
    rows = to_rows(gather(case, ids, numbered, offsets, known, look=look)[..., 0])
    if part == "hashing":
        return store(case, x), rows
    if part == "embedding":
        return store(case, x), found(tables[rows])
    x, sparse = into(hidden(x)), wide(found(tables[rows]))
    stack = np.concatenate([x[:, None], sparse], axis=1)
    if case.options["interaction"] == "outer":
        flat = stack.reshape(len(x), -1)
        return store(case, crossed((flat[:, :, None] * flat[:, None, :]).reshape(len(x), -1)))
    i, j = np.tril_indices(stack.shape[1], -1)
    return store(case, np.hstack([x, crossed(product(stack, stack.swapaxes(1, 2))[:, i, j])]))


def with_(**hooks):
    return partial(until, **hooks)


def stored(case, *inputs, product=library):
    """What goes from launch to launch in 16 bits."""
    return until(case, *inputs, product=product, hidden=partial(keep, case))


def staged(case, *inputs):
    k = partial(keep, case)
    return until(case, *inputs, value=k, hidden=k)


def flushed(case, dense, *rest):
    return until(case, flush(dense), *rest, hidden=flush, crossed=flush)


CORRECT = {
    **{f"fused, {n}": Program(with_(product=p), (), when(is_ieee)) for n, p in PRODUCTS.items()},
    **{f"fused, {n}": Program(with_(product=p), (), when(is_tf32)) for n, p in TF32.items()},
    **{f"stored, {n}": Program(partial(stored, product=p), ("hidden",), when(is_16)) for n, p in TENSOR_CORES.items()},
    "stored": Program(stored, ("hidden",), four_at_most),
    "staged": Program(staged, ("product", "bias"), four_at_most),
    "subnormals flushed": Program(flushed, ("subnormals",), when(is_32)),
}  # fmt: skip

F, S = "fused, library", "stored"
__all__ = ("CORRECT", "LARGEST", "MISTAKES")


def at(part, **more):
    """The options of a case that ends with the part."""
    return {"until": part, **more}


def missing(place):
    return lambda v: edit(v, place, 0)


MISTAKES = {
    "relu on the last layer": Mistake(with_(vector=relu), F, ODD),
    "relu between layers forgotten": Mistake(with_(between=same), F, ODD),
    "bias of the last layer forgotten": Mistake(with_(bias=lambda i, b: b * np.float32(i < 2)), F, ODD),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), F, ODD),
    "float16 accumulation": Mistake(partial(stored, product=half_sums), S, ODD, "float16"),
    "stored but not declared": Mistake(stored, "fused, library", ODD, "bfloat16"),
    "rows one off": Mistake(with_(to_rows=lambda rows: rows + 1), F, ODD, options=at("hashing")),
    "one row one off": Mistake(
        with_(to_rows=lambda rows: edit(rows, (3, 2), rows[3, 2] + 1)), F, ODD, options=at("hashing")),
    "rows within their tables": Mistake(
        lambda case, dense, ids, tables, offsets, *rest: until(
            case, dense, ids, tables, offsets, *rest, to_rows=lambda rows: rows - offsets[:-1]),
        F, ODD, options=at("hashing")),
    "rows of features swapped": Mistake(with_(to_rows=lambda rows: rows[:, ::-1]), F, ODD, options=at("hashing")),
    "unknown to row 0": Mistake(with_(look=unknown_to_row_0), F, ODD, options=at("hashing", hashing="lookup")),
    "id for id + 1": Mistake(
        with_(look=lambda i, o, k, f: i % (o[f + 1] - o[f])), F, ODD, options=at("embedding")),
    "dense vector missing beside the rows": Mistake(with_(vector=np.zeros_like), F, ODD, options=at("hashing")),
    "a feature missing": Mistake(with_(found=missing(np.s_[:, -1])), F, ODD, options=at("embedding")),
    "vectors of the next sample": Mistake(with_(found=lambda v: np.roll(v, 1, axis=0)), F, ODD, options=at("embedding")),
    "vectors in float16": Mistake(
        with_(found=lambda v: v.astype(np.float16).astype(v.dtype)), F, ODD, options=at("embedding")),
    "dense missing from the interaction": Mistake(with_(into=np.zeros_like), F, ODD, options=at("interaction")),
    "last product missing": Mistake(with_(crossed=missing(np.s_[:, -1])), F, ODD, options=at("interaction")),
    "outer: lower triangle alone": Mistake(
        with_(crossed=lambda y: np.tril(y.reshape(37, 42, 42)).reshape(37, -1)), F, ODD,
        options=at("interaction", interaction="outer")),
    "first output again": Mistake(first_again(until), F, ODD, calls=2),
}  # fmt: skip
