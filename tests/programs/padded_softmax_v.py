"""padded_softmax_v: causal softmax of ready-scaled scores behind left padding, times v."""

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
    given,
    half,
    half_sums,
    in_halves,
    is_16,
    is_32,
    is_ieee,
    is_tf32,
    keep,
    library,
    of,
    pairwise,
    same,
    store,
    tf32_cut,
    tf32_nearest,
    wide,
)
from programs.padded_attention import visible, without_padding
from programs.softmax import exp2, from_zero, highest, online, seldom_raised, softmax


def weigh(att, v, n_padd, product=library, weighed=same, seen=visible, of_rows=softmax, clean=without_padding):
    shown = seen(len(att), n_padd)
    probabilities = np.where(shown, of_rows(np.where(shown, wide(att), -np.inf)), np.float32(0))
    return product(weighed(probabilities), clean(v, n_padd))


def flash(att, v, n_padd, block=16, rows=online, **hooks):
    """Blocks of keys, what is weighted so far scaled down whenever the maximum rises."""
    shown = visible(len(att), n_padd)
    weighted = rows(np.where(shown, wide(att), -np.inf), block, without_padding(v, n_padd), **hooks)
    return np.where(shown.any(axis=-1, keepdims=True), weighted, np.float32(0))


def divided_at_the_end(att, v, n_padd, product=library, weighed=same):
    shown = visible(len(att), n_padd)
    hidden = np.where(shown, wide(att), -np.inf)
    exponentials = np.exp(hidden - highest(hidden))
    total = np.where(shown.any(axis=-1, keepdims=True), pairwise(exponentials), np.float32(1))
    return product(weighed(exponentials), without_padding(v, n_padd)) / total


def program(run=weigh, **hooks):
    return lambda case, att, v, n: store(case, run(att, v, n, **hooks))


def stored(run=weigh, **hooks):
    """Weights in the storage dtype, for the tensor cores."""
    return lambda case, att, v, n: store(case, run(att, v, n, weighed=partial(keep, case), **hooks))


CORRECT = {
    **{f"whole rows, {n}": Program(program(product=p), (), is_ieee) for n, p in PRODUCTS.items()},
    **{f"whole rows, {n}": Program(program(product=p), (), is_tf32) for n, p in TF32.items()},
    "whole rows, by exp2": Program(program(of_rows=partial(softmax, exp=exp2))),
    "flash": Program(program(flash)),
    "flash by exp2, blocks of 7": Program(program(flash, block=7, exp=exp2)),
    "maximum raised by 8": Program(program(flash, rows=seldom_raised)),
    "maximum raised by 8, weights stored": Program(
        lambda case, *a: store(case, flash(*a, rows=seldom_raised, weighed=partial(keep, case))), ("probabilities",), is_16),
    "divided at the end": Program(program(divided_at_the_end)),
    **{f"weights stored, {n}": Program(stored(product=p), ("probabilities",), is_16) for n, p in TENSOR_CORES.items()},
    "weights stored, divided at the end": Program(stored(divided_at_the_end), ("probabilities",), is_16),
    "subnormals flushed": Program(
        lambda case, att, v, n: flush(weigh(flush(att), flush(v), n)), ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"T": 90, "D": 40}
ODD, SQUARE = {"T": 67, "D": 19}, {"T": 24, "D": 24}
W, F, S = "whole rows, library", "flash", "weights stored, tensor core of 8"


def mask(test):
    """Another mask: test(i, j, n_padd)."""
    return program(seen=lambda T, n: test(np.arange(T)[:, None], np.arange(T), n), clean=lambda v, n: wide(v))


def clean(arrays):
    """Numbers where NaN was: a mistake must show without it."""
    return {n: np.where(np.isnan(a), 1, a).astype(a.dtype) if a.dtype.kind != "i" else a for n, a in arrays.items()}


def whole(change):
    return lambda case, att, v, n: store(case, change(weigh(att, v, n), int(n)))


def fixed_padding():
    first = []

    def run(case, att, v, n_padd):
        first.append(int(n_padd))
        return store(case, weigh(att, v, first[0], clean=lambda v, n: wide(v)))

    return run


def stale():
    """Rows of padding keep what the call before left there."""
    kept = []

    def run(case, att, v, n_padd):
        y = store(case, weigh(att, v, n_padd))
        if kept:
            y[:n_padd] = kept[0][:n_padd]
        kept.append(y)
        return y

    return run


MISTAKES = {
    "v by way of float16": Mistake(given(program(), 1, half), W, ODD, "bfloat16", inputs="wide"),
    "mask one short: j < i": Mistake(mask(lambda i, j, n: (n <= j) & (j < i)), W, ODD, change=clean),
    "mask one long: j <= i + 1": Mistake(mask(lambda i, j, n: (n <= j) & (j <= i + 1) & (n <= i)), W, ODD, change=clean),
    "not causal": Mistake(mask(lambda i, j, n: (n <= j) & (n <= i)), W, ODD, change=clean),
    "padding ignored": Mistake(mask(lambda i, j, n: (j <= i) & (n <= i)), W, ODD, change=clean),
    "padding one more": Mistake(mask(lambda i, j, n: (n < j) & (j <= i)), W, ODD, change=clean),
    "padding one less": Mistake(mask(lambda i, j, n: (n - 1 <= j) & (j <= i)), W, ODD, change=clean),
    "values masked with a width of 4": Mistake(
        program(clean=lambda v, n: without_padding(v, 4)), W, ODD, seed=1, options={"padding": "few"}),
    "padding fixed at the first value": Mistake(fixed_padding(), W, ODD, change=clean, calls=2, options={"padding": "any"}),
    "padding rows stale": Mistake(stale(), W, ODD, calls=2, seed=1, options={"padding": "any"}),
    "padding rows NaN": Mistake(whole(lambda y, n: edit(y, np.s_[:n], np.nan)), W, ODD),
    "NaN of padding times 0": Mistake(program(clean=lambda v, n: wide(v)), W, ODD),
    "NaN made 0 in all of v": Mistake(program(clean=lambda v, n: np.nan_to_num(wide(v))), W, ODD, inputs="nan_column"),
    "maximum that begins at 0": Mistake(program(of_rows=partial(softmax, top=from_zero)), W, ODD, "float16", inputs="negative"),
    "maximum that begins at 0, one pass": Mistake(program(flash, least=np.float32(0)), F, ODD, inputs="negative"),
    "-1e6 as a mask": Mistake(
        program(of_rows=lambda s: softmax(np.maximum(s, np.float32(-1e6)))), W, ODD, "bfloat16", inputs="negative"),
    "not normalised": Mistake(program(of_rows=partial(softmax, total=lambda e: np.float32(1))), W, ODD),
    "normalised by the row's number": Mistake(
        program(of_rows=partial(softmax, total=lambda e: np.arange(1, len(e) + 1, dtype=np.float32)[:, None])), W, ODD),
    "scaled once more": Mistake(
        lambda case, att, v, n: store(case, weigh(wide(att) / np.float32(np.sqrt(19)), v, n)), W, ODD),
    "earlier blocks not scaled down": Mistake(program(flash, rescale=False), F, ODD),
    "-inf less -inf": Mistake(program(flash, block=3, safe=False), F, ODD),
    "last keys missing": Mistake(program(flash, block=11, skipped=1), F, ODD),
    "weights one token off": Mistake(program(weighed=lambda p: np.roll(p, 1, axis=-1)), W, ODD),
    "weights transposed": Mistake(program(weighed=lambda p: p.T), W, ODD),
    "v transposed": Mistake(lambda case, att, v, n: store(case, weigh(att, v.T, n)), W, SQUARE, change=clean),
    "columns of v past 16 missing": Mistake(whole(lambda y, n: edit(y, np.s_[:, 16:], 0)), W, ODD),
    "last row missing": Mistake(whole(lambda y, n: edit(y, -1, 0)), W, ODD),
    "last column missing": Mistake(whole(lambda y, n: edit(y, np.s_[:, -1], 0)), W, ODD),
    "sum of exponentials in float16": Mistake(program(of_rows=partial(softmax, total=in_halves)), W, ODD),
    "float16 accumulation": Mistake(stored(product=half_sums), S, ODD, "float16"),
    "weights stored, not declared": Mistake(stored(), "divided at the end", ODD, "bfloat16"),
    "weights stored, not declared, float16": Mistake(stored(), "divided at the end", ODD, "float16"),
    "tf32 where ieee was asked": Mistake(program(product=of(tf32_cut)), W, ODD),
    "nearest tf32 where ieee was asked": Mistake(program(product=of(tf32_nearest)), W, ODD),
    "transposed": Mistake(whole(lambda y, n: y.T.copy()), W, SQUARE),
    "zeros": Mistake(whole(lambda y, n: 0 * y), W, ODD),
    "no padding taken for 4": Mistake(
        mask(lambda i, j, n: (np.where(n == 0, 4, n) <= j) & (j <= i)), W, ODD, inputs="lower_edge"),
    "all padding: the last row sees itself": Mistake(
        mask(lambda i, j, n: (np.minimum(n, len(i) - 1) <= j) & (j <= i)), W, ODD, change=clean, inputs="upper_edge"),
    "first output again": Mistake(first_again(program()), W, ODD, calls=2),
}  # fmt: skip
