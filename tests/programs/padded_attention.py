"""padded_attention: softmax(q kᵀ / √D) v, where token j is visible to token i iff n_padd <= j <= i."""

import itertools
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
    fp8,
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
    three_of_bfloat16,
    wide,
)
from programs.softmax import LOG2E, exp2, from_zero, highest, online, softmax


def visible(T, n_padd):
    """(…, T, T) for n_padd (…)."""
    i, j = np.arange(T)[:, None], np.arange(T)
    n = np.asarray(n_padd)[..., None, None]
    return (n <= j) & (j <= i)


def without_padding(a, n_padd):
    """Padding tokens (…, T, D) as 0: 0 times NaN is NaN."""
    return np.where(np.arange(a.shape[-2])[:, None] < np.asarray(n_padd)[..., None, None], np.float32(0), wide(a))


def attend(q, k, v, n_padd, product=library, scale=None, scored=same, weighed=same, seen=visible, of_rows=softmax,
           clean=without_padding):  # fmt: skip
    """In float32, (…, T, D) and n_padd (…). `scored` and `weighed` are what becomes of scores and probabilities."""
    T, D = q.shape[-2:]
    shown = seen(T, n_padd)
    scores = scored(product(wide(q), clean(k, n_padd).swapaxes(-1, -2))) * np.float32(scale or 1 / np.sqrt(D))
    hidden = np.where(shown, scores, -np.inf)
    probabilities = np.where(shown, of_rows(hidden), np.float32(0))
    return product(weighed(probabilities), clean(v, n_padd))


def flash(q, k, v, n_padd, product=library, block=16, exp=np.exp, **hooks):
    """Blocks of keys, the weighted values scaled down whenever the maximum rises, divided at the end."""
    T, D = q.shape[-2:]
    shown = visible(T, n_padd)
    scores = product(wide(q), without_padding(k, n_padd).swapaxes(-1, -2)) * np.float32(1 / np.sqrt(D))
    hidden = np.where(shown, scores, -np.inf)
    weighted = online(hidden, block, without_padding(v, n_padd), exp, **hooks)
    return np.where(shown.any(axis=-1, keepdims=True), weighted, np.float32(0))


def heads(run, **hooks):
    """Of arrays (B, H, T, D) and n_padd (B,)."""
    return lambda case, q, k, v, n_padd: store(case, run(q, k, v, n_padd[:, None], **hooks))


def divided_at_the_end(q, k, v, n_padd, product=library, weighed=same):
    """Exponentials meet the values as they are."""
    shown = visible(q.shape[-2], n_padd)
    scores = product(wide(q), without_padding(k, n_padd).swapaxes(-1, -2)) * np.float32(1 / np.sqrt(q.shape[-1]))
    hidden = np.where(shown, scores, -np.inf)
    exponentials = np.exp(hidden - highest(hidden))
    total = pairwise(exponentials)
    return product(weighed(exponentials), without_padding(v, n_padd)) / np.where(total == 0, np.float32(1), total)


def weights_stored(run=attend, **hooks):
    """Probabilities stored, for the tensor cores."""
    return lambda case, q, k, v, n: store(case, run(q, k, v, n[:, None], weighed=partial(keep, case), **hooks))


def staged(case, q, k, v, n_padd):
    scale = partial(keep, case)
    scores = scale(
        scale(wide(q) @ without_padding(k, n_padd[:, None]).swapaxes(-1, -2)) * np.float32(q.shape[-1] ** -0.5)
    )
    shown = visible(q.shape[-2], n_padd[:, None])
    probabilities = scale(np.where(shown, softmax(np.where(shown, scores, -np.inf)), np.float32(0)))
    return store(case, probabilities @ without_padding(v, n_padd[:, None]))


def folded(case, q, k, v, n_padd, block=16, parts=1, weighed=same):
    """Flash with scale and log2(e) in one constant, as exp2(s c - m c) in one rounding; `parts` of the keys apart, merged at the end."""
    n, (T, D) = n_padd[:, None], q.shape[-2:]
    shown, k, v = visible(T, n), without_padding(k, n), without_padding(v, n)
    hidden, c = np.where(shown, wide(q) @ k.swapaxes(-1, -2), -np.inf), np.float32(D**-0.5) * LOG2E

    def part(begin, end):
        top = np.full((*hidden.shape[:-1], 1), -np.inf, np.float32)
        total, weighted = np.zeros_like(top), np.zeros((*hidden.shape[:-1], D), np.float32)
        for at in (slice(b, min(b + block, end)) for b in range(begin, end, block)):
            raised = np.maximum(top, hidden[..., at].max(axis=-1, keepdims=True))
            finite = np.where(np.isneginf(raised), np.float32(0), raised)
            exponentials = np.exp2(wide(hidden[..., at].astype(np.float64) * c - finite * c))
            shrink, top = np.exp2((top - finite) * c), raised
            total, weighted = (
                total * shrink + pairwise(exponentials),
                weighted * shrink + weighed(exponentials) @ v[..., at, :],
            )
        return top, total, weighted

    ends = np.linspace(0, T, min(parts, T) + 1).astype(int)
    found = [part(*of) for of in itertools.pairwise(ends)]
    top = highest(np.concatenate([f[0] for f in found], axis=-1))
    total, weighted = (sum(f[i] * np.exp2((f[0] - top) * c) for f in found) for i in (1, 2))
    return store(
        case,
        np.where(
            shown.any(axis=-1, keepdims=True), weighted / np.where(total == 0, np.float32(1), total), np.float32(0)
        ),
    )


CORRECT = {
    "scale in exp2": Program(folded, (), lambda case: not is_tf32(case)),
    "keys in parts": Program(partial(folded, parts=3), (), lambda case: not is_tf32(case)),
    "scale in exp2, weights stored": Program(
        lambda case, *a: folded(case, *a, parts=2, block=8, weighed=partial(keep, case)), ("probabilities",), is_16),
    **{f"whole rows, {n}": Program(heads(attend, product=p), (), is_ieee) for n, p in PRODUCTS.items()},
    **{f"whole rows, {n}": Program(heads(attend, product=p), (), is_tf32) for n, p in TF32.items()},
    "whole rows, by exp2": Program(heads(attend, of_rows=partial(softmax, exp=exp2))),
    "flash": Program(heads(flash), (), lambda case: not is_tf32(case)),
    "flash by exp2, blocks of 7": Program(heads(flash, block=7, exp=exp2)),
    "flash, tf32": Program(heads(flash, product=of(tf32_nearest)), (), is_tf32),
    "divided at the end": Program(heads(divided_at_the_end)),
    **{f"weights stored, {n}": Program(weights_stored(product=p), ("probabilities",), is_16) for n, p in TENSOR_CORES.items()},
    "weights stored, divided at the end": Program(weights_stored(divided_at_the_end), ("probabilities",), is_16),
    "staged": Program(staged, ("scores", "scaled", "probabilities"), is_16),
    "subnormals flushed": Program(
        lambda case, q, k, v, n: flush(attend(flush(q), flush(k), flush(v), n[:, None])), ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"B": 3, "H": 3, "T": 60, "D": 40}
ODD = {"B": 2, "H": 3, "T": 37, "D": 19}
SQUARE = {"B": 2, "H": 2, "T": 24, "D": 24}
W, F, S = "whole rows, library", "flash", "weights stored, tensor core of 8"


def with_(**hooks):
    return heads(attend, **hooks)


def mask(test):
    """Another mask: test(i, j, n_padd). Padding is not looked at where it is thought to be visible: it is NaN."""

    def seen(T, n_padd):
        return test(np.arange(T)[:, None], np.arange(T), np.asarray(n_padd)[..., None, None])

    return with_(seen=seen, clean=lambda a, n: wide(a))


def clean(arrays):
    """Numbers in padding: a mistake must show without NaN."""
    return {n: np.where(np.isnan(a), 1, a).astype(a.dtype) if a.dtype.kind != "i" else a for n, a in arrays.items()}


def whole(change):
    return lambda case, q, k, v, n: store(case, change(attend(q, k, v, n[:, None]), n))


def fixed_padding():
    first = []

    def run(case, q, k, v, n_padd):
        first.append(n_padd)
        return store(case, attend(q, k, v, first[0][:, None], clean=lambda a, n: wide(a)))

    return run


def stale():
    """Rows of padding are not written: they keep what the call before left there."""
    kept = []

    def run(case, q, k, v, n_padd):
        y = store(case, attend(q, k, v, n_padd[:, None]))
        if kept:
            for b, n in enumerate(n_padd):
                y[b, :, :n] = kept[0][b, :, :n]
        kept.append(y)
        return y

    return run


def nan_rows(y, n):
    return np.where(visible(y.shape[-2], n[:, None]).any(axis=-1, keepdims=True), y, np.nan)


def off_in_the_last(T, n_padd):
    """No token sees itself in the last sequence, but for the first that is no padding."""
    shown = np.array(visible(T, n_padd))
    first = np.arange(T) == np.ravel(n_padd)[-1]
    shown[-1] &= ~np.eye(T, dtype=bool) | first[:, None]
    return shown


def in_one_head(**hooks):
    """Head 1 by another program."""
    return lambda case, q, k, v, n: store(
        case, edit(attend(q, k, v, n[:, None]), np.s_[:, 1], attend(q, k, v, n[:, None], **hooks)[:, 1]))  # fmt: skip


def exchanged_in_one_head(case, q, k, v, n):
    return store(case, edit(attend(q, k, v, n[:, None]), np.s_[:, 1], attend(k, q, v, n[:, None])[:, 1]))


def never_raised(q, k, v, n_padd):
    """The maximum of the first block throughout, exponentials no larger than 2^8."""
    shown = visible(q.shape[-2], n_padd)
    scores = wide(q) @ without_padding(k, n_padd).swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    hidden = np.where(shown, scores, -np.inf)
    first = hidden[..., :16].max(axis=-1, keepdims=True)
    exponentials = np.minimum(np.exp(hidden - np.where(np.isneginf(first), highest(hidden), first)), np.float32(256))
    total = pairwise(exponentials)
    return exponentials @ without_padding(v, n_padd) / np.where(total == 0, np.float32(1), total)


def masked_by_a_number(case, q, k, v, n_padd, number=-1e4):
    """What is hidden has scores of that number and a weight, but in rows that see nothing."""
    n = n_padd[:, None]
    shown = visible(q.shape[-2], n)
    scores = wide(q) @ without_padding(k, n).swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    weights = np.where(
        shown.any(axis=-1, keepdims=True), softmax(np.where(shown, scores, np.float32(number))), np.float32(0)
    )
    return store(case, weights @ without_padding(v, n))


def replaced(name, at, by):
    """Some of q, k or v in the place of others."""

    def run(case, q, k, v, n):
        arrays = {"q": q, "k": k, "v": v}
        arrays[name] = edit(arrays[name], at, arrays[name][by])
        return store(case, attend(*arrays.values(), n[:, None]))

    return run


MISTAKES = {
    "v by way of float16": Mistake(given(with_(), 2, half), W, ODD, "bfloat16", inputs="wide"),
    "scale twice in one head": Mistake(in_one_head(scale=1 / 19), "flash", ODD, "bfloat16"),
    "q and k exchanged in one head": Mistake(exchanged_in_one_head, "flash", ODD, "float16", change=clean),
    "weights of one head in 8 bits": Mistake(in_one_head(weighed=fp8), "flash", ODD, "bfloat16"),
    "padding one more beside a tile": Mistake(
        mask(lambda i, j, n: (np.where(n % 16 == 15, n + 1, n) <= j) & (j <= i)), W, ODD | {"B": 48}, inputs="between", change=clean),
    "padding one more in the second sequence": Mistake(
        mask(lambda i, j, n: (n + (np.arange(n.size).reshape(n.shape) == 1) <= j) & (j <= i)), W, ODD, change=clean),
    "the first key hidden where padding is 5": Mistake(
        mask(lambda i, j, n: (n + ((n == 5) & (i > n)) <= j) & (j <= i)), "flash", ODD, "bfloat16",
        change=lambda arrays: clean(arrays) | {"n_padd": np.array([5, 8], np.int32)}),
    "last values of one head from the one before": Mistake(
        replaced("v", np.s_[:, 1, -5:], np.s_[:, 0, -5:]), "flash", ODD, "bfloat16", change=clean),
    "a block of keys one late": Mistake(
        replaced("k", np.s_[:, :, 16:32], np.s_[:, :, 17:33]), "flash", ODD, "float16", change=clean),
    "the maximum of the first block": Mistake(heads(never_raised), W, ODD, change=lambda arrays: clean(arrays) | {"q": clean(arrays)["q"] * np.float32(4)}),
    "log2(e) of five digits": Mistake(
        with_(of_rows=partial(softmax, exp=lambda a: np.exp2(a * np.float32(1.4427)))), "flash", ODD, "float16"),
    "query scaled and stored, not declared": Mistake(
        lambda case, q, k, v, n: store(case, attend(keep(case, wide(q) * np.float32(19**-0.5)), k, v, n[:, None], scale=1.0)),
        "flash", ODD, "bfloat16"),
    "mask one short in the last sequence": Mistake(with_(seen=off_in_the_last), W, ODD),
    "last key twice in the total": Mistake(
        with_(of_rows=partial(softmax, total=lambda e: pairwise(e) + e[..., -1:])), W, ODD),
    "mask one short: j < i": Mistake(mask(lambda i, j, n: (n <= j) & (j < i)), W, ODD, change=clean),
    "mask one long: j <= i + 1": Mistake(mask(lambda i, j, n: (n <= j) & (j <= i + 1) & (n <= i)), W, ODD, change=clean),
    "next token visible in the last 16 rows": Mistake(
        mask(lambda i, j, n: (n <= j) & (j <= i + (i >= 21)) & (n <= i)), W, ODD, "bfloat16", change=clean),
    "not causal": Mistake(mask(lambda i, j, n: (n <= j) & (n <= i)), W, ODD, change=clean),
    "padding ignored": Mistake(mask(lambda i, j, n: (j <= i) & (n <= i)), W, ODD, change=clean),
    "padding one more": Mistake(mask(lambda i, j, n: (n < j) & (j <= i)), W, ODD, change=clean),
    "padding one less": Mistake(mask(lambda i, j, n: (n - 1 <= j) & (j <= i)), W, ODD, change=clean),
    "padding of the first sequence in all": Mistake(
        mask(lambda i, j, n: (n[:1] <= j) & (j <= i)), W, ODD, change=clean, seed=2, options={"padding": "any"}),
    "padding on the right": Mistake(
        mask(lambda i, j, n: (j < len(j) - n) & (j <= i)), W, ODD, change=clean),
    "padding fixed at the first value": Mistake(fixed_padding(), W, ODD, change=clean, calls=2, options={"padding": "any"}),
    "padding rows stale": Mistake(stale(), W, ODD, calls=2, options={"padding": "any"}),
    "padding rows NaN": Mistake(whole(nan_rows), W, ODD),
    "NaN of padding times 0": Mistake(with_(clean=lambda a, n: wide(a)), W, ODD),
    "scale forgotten": Mistake(with_(scale=1), W, ODD),
    "scale 1/D": Mistake(with_(scale=1 / 19), W, ODD),
    "scale of the next power of two": Mistake(with_(scale=32**-0.5), W, ODD),
    "scale in bfloat16": Mistake(with_(scale=float(bfloat16_cut(np.float32(19**-0.5).reshape(1))[0])), W, ODD),
    "not normalised": Mistake(with_(of_rows=partial(softmax, total=lambda e: np.float32(1))), W, ODD),
    "normalised over hidden ones": Mistake(
        with_(of_rows=partial(softmax, total=lambda e: pairwise(e) + np.float32(1))), W, ODD),
    "maximum not taken off": Mistake(with_(of_rows=partial(softmax, top=lambda s: np.float32(0))), W, ODD,
                                     change=lambda arrays: arrays | {"q": arrays["q"] * np.float32(60)}),
    "maximum not taken off, large inputs": Mistake(
        with_(of_rows=partial(softmax, top=lambda s: np.float32(0))), W, ODD, inputs="large"),
    "-1e4 as a mask": Mistake(masked_by_a_number, W, ODD, "bfloat16", inputs="large"),
    "-1e6 as a mask": Mistake(partial(masked_by_a_number, number=-1e6), W, ODD, inputs="negative"),
    "maximum that begins at 0": Mistake(with_(of_rows=partial(softmax, top=from_zero)), W, ODD, "float16", inputs="negative"),
    "maximum that begins at 0, one pass": Mistake(heads(flash, least=np.float32(0)), F, ODD, "bfloat16", inputs="negative"),
    "NaN made 0 in all of v": Mistake(
        lambda case, q, k, v, n: store(case, attend(q, k, np.nan_to_num(wide(v)), n[:, None])), W, ODD, inputs="nan_column"),
    "earlier blocks not scaled down": Mistake(heads(flash, rescale=False), F, ODD),
    "-inf less -inf": Mistake(heads(flash, block=3, safe=False), F, ODD),
    "last keys missing": Mistake(heads(flash, block=6, skipped=1), F, ODD),
    "weights for values of the next token": Mistake(with_(weighed=lambda p: np.roll(p, 1, axis=-1)), W, ODD),
    "k for v": Mistake(lambda case, q, k, v, n: store(case, attend(q, k, k, n[:, None])), W, ODD),
    "q and k swapped": Mistake(lambda case, q, k, v, n: store(case, attend(k, q, v, n[:, None])), W, ODD),
    "values of the first head in all": Mistake(
        lambda case, q, k, v, n: store(case, attend(q, k, v[:, :1] + 0 * v, n[:, None])), W, ODD, change=clean),
    "heads and tokens swapped": Mistake(whole(lambda y, n: y.swapaxes(1, 2).reshape(y.shape)), W, ODD),
    "only 16 columns of D": Mistake(whole(lambda y, n: edit(y, np.s_[..., 16:], 0)), W, ODD),
    "only 16 columns of the scores": Mistake(
        lambda case, q, k, v, n: store(case, attend(edit(q, np.s_[..., 16:], 0), k, v, n[:, None])), W, ODD, change=clean),
    "last row missing": Mistake(whole(lambda y, n: edit(y, np.s_[..., -1, :], 0)), W, ODD),
    "transposed": Mistake(whole(lambda y, n: y.swapaxes(-1, -2).copy()), W, SQUARE),
    "float16 accumulation": Mistake(weights_stored(product=half_sums), S, ODD, "float16"),
    "sum of exponentials in float16": Mistake(with_(of_rows=partial(softmax, total=in_halves)), W, ODD),
    "weights in 8 bits": Mistake(with_(weighed=fp8), W, ODD, "bfloat16"),
    "three products of bfloat16 where ieee was asked": Mistake(with_(product=three_of_bfloat16), W, ODD),
    "weights stored, not declared": Mistake(weights_stored(), "flash", ODD, "bfloat16"),
    "weights stored, not declared, float16": Mistake(weights_stored(), "flash", ODD, "float16"),
    "scores stored, not declared": Mistake(
        lambda case, q, k, v, n: store(
            case, attend(q, k, v, n[:, None], scored=partial(keep, case), weighed=partial(keep, case))), S, ODD, "bfloat16"),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), W, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), W, ODD),
    "bfloat16 where tf32 was asked": Mistake(
        with_(product=of(bfloat16_cut)), "whole rows, tf32 cut off", ODD, precision="tf32"),
    "zeros": Mistake(whole(lambda y, n: 0 * y), W, ODD),
    "no padding taken for 4": Mistake(
        mask(lambda i, j, n: (np.where(n == 0, 4, n) <= j) & (j <= i)), W, ODD, inputs="lower_edge"),
    "all padding: the last row sees itself": Mistake(
        mask(lambda i, j, n: (np.minimum(n, len(i) - 1) <= j) & (j <= i)), W, ODD, change=clean, inputs="upper_edge"),
    "first output again": Mistake(first_again(heads(attend)), W, ODD, calls=2),
}  # fmt: skip
