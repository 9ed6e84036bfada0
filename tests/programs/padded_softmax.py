"""padded_softmax: token j is visible to token i iff n_padd <= j <= i."""

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import SUMS, edit, first_again, flush, in_halves, is_16, is_32, keep, pairwise, store, wide
from programs.softmax import STEPS, each_step, exp2, from_zero, highest, online, softmax


def visible(T, n_padd):
    i, j = np.arange(T)[:, None], np.arange(T)
    return (n_padd <= j) & (j <= i)


def masked(att, n_padd, seen=visible, of_rows=softmax, **hooks):
    """-inf where hidden, softmax, 0 where hidden."""
    shown = seen(att.shape[-1], n_padd)
    return np.where(shown, of_rows(np.where(shown, wide(att), -np.inf), **hooks), np.float32(0))


def row_by_row(case, att, n_padd):
    """Only what a row sees is read."""
    y = np.zeros_like(att)
    for i in range(n_padd, len(att)):
        y[i, n_padd : i + 1] = store(case, softmax(wide(att[i, n_padd : i + 1])))
    return y


def program(**hooks):
    return lambda case, att, n_padd: store(case, masked(att, n_padd, **hooks))


CORRECT = {
    **{f"masked, {n}": Program(program(total=t)) for n, t in SUMS.items()},
    "by exp2": Program(program(exp=exp2)),
    "times the inverse": Program(program(inverse=True)),
    "online": Program(program(of_rows=online)),
    "online, blocks of 16": Program(program(of_rows=online, block=16, exp=exp2)),
    "row by row": Program(row_by_row),
    "each step": Program(
        lambda case, att, n: store(case, masked(att, n, of_rows=lambda s: each_step(case, s))), STEPS, is_16),
    "subnormals flushed": Program(
        lambda case, att, n: flush(masked(flush(att), n)), ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"T": 140}
ODD = {"T": 131}
M, ON, ROWS = "masked, pairwise", "online", "row by row"


def later(T, n_padd):
    return np.roll(visible(T, n_padd), 1, axis=1) & (np.arange(T) >= n_padd)


def mask(test):
    """Programs with another mask: test(i, j, n_padd)."""
    return program(seen=lambda T, n: test(np.arange(T)[:, None], np.arange(T), n))


def clean(arrays):
    """No NaN in what is hidden: a mistake must show without it."""
    return arrays | {"att": np.where(np.isnan(arrays["att"]), 0, arrays["att"]).astype(arrays["att"].dtype)}


def large_where_hidden(arrays):
    """100 where NaN was: a maximum that counts it leaves nothing of what is seen."""
    return arrays | {"att": np.where(np.isnan(arrays["att"]), 120, arrays["att"]).astype(arrays["att"].dtype)}


def by_product(case, att, n_padd):
    """exp, then times the mask: NaN times 0 is NaN."""
    shown = visible(len(att), n_padd)
    e = np.exp(wide(att) - highest(np.where(shown, wide(att), -np.inf))) * shown
    return store(case, e / np.where(pairwise(e) == 0, 1, pairwise(e)))


def by_addition(value):
    """A large negative number added where hidden; rows that see nothing become uniform."""

    def run(case, att, n_padd):
        return store(case, softmax(wide(att) + np.where(visible(len(att), n_padd), np.float32(0), np.float32(value))))

    return run


def by_a_number(value):
    """What is hidden has that score, and is 0 afterwards."""

    def run(case, att, n_padd):
        shown = visible(len(att), n_padd)
        return store(case, np.where(shown, softmax(np.where(shown, wide(att), np.float32(value))), np.float32(0)))

    return run


def nan_rows(case, att, n_padd):
    """Rows of padding left as 0/0."""
    return store(case, softmax(np.where(visible(len(att), n_padd), wide(att), -np.inf)))


def maximum_of_hidden(case, att, n_padd):
    shown = visible(len(att), n_padd)
    e = np.where(shown, np.exp(wide(att) - highest(wide(att))), np.float32(0))
    return store(case, np.where(shown, e / pairwise(e), np.float32(0)))


def fixed_padding():
    first = []

    def run(case, att, n_padd):
        first.append(int(n_padd))
        return store(case, masked(att, first[0]))

    return run


def stale():
    """Padding rows and hidden positions are not written: they keep what the call before left there."""
    kept = []

    def run(case, att, n_padd):
        y = store(case, masked(att, n_padd))
        if kept:
            y[:n_padd] = kept[0][:n_padd]
        kept.append(y)
        return y

    return run


def whole(change):
    return lambda case, att, n_padd: store(case, change(masked(att, n_padd), int(n_padd)))


MISTAKES = {
    "mask one short: j < i": Mistake(mask(lambda i, j, n: (n <= j) & (j < i)), M, ODD, change=clean),
    "mask one long: j <= i + 1": Mistake(mask(lambda i, j, n: (n <= j) & (j <= i + 1)), M, ODD, change=clean),
    "padding one more": Mistake(mask(lambda i, j, n: (n < j) & (j <= i)), M, ODD, change=clean),
    "padding one less": Mistake(mask(lambda i, j, n: (n - 1 <= j) & (j <= i)), M, ODD, change=clean),
    "padding ignored": Mistake(mask(lambda i, j, n: j <= i), M, ODD, change=clean),
    "padding on the right": Mistake(mask(lambda i, j, n: (j < len(j) - n) & (j <= i)), M, ODD, change=clean),
    "padding of rows alone": Mistake(mask(lambda i, j, n: (n <= i) & (j <= i)), M, ODD, change=clean),
    "not causal": Mistake(mask(lambda i, j, n: (n <= j) & (n <= i)), M, ODD, change=clean),
    "causal by blocks of 16": Mistake(mask(lambda i, j, n: (n <= j) & (j // 16 <= i // 16)), M, ODD, change=clean),
    "mask transposed": Mistake(mask(lambda i, j, n: (n <= i) & (i <= j)), M, ODD, change=clean),
    "padding fixed at 4": Mistake(mask(lambda i, j, n: (j >= 4) & (j <= i)), M, ODD, change=clean, seed=1),
    "padding fixed at the first value": Mistake(fixed_padding(), M, ODD, change=clean, calls=2, seed=1),
    "padding rows stale": Mistake(stale(), M, ODD, calls=2, seed=2),
    "padding rows NaN": Mistake(nan_rows, M, ODD),
    "padding rows uniform": Mistake(
        whole(lambda y, n: edit(y, np.s_[:n], np.float32(1 / len(y)))), M, ODD),
    "hidden keeps the scores": Mistake(
        lambda case, att, n: np.where(visible(len(att), n), store(case, masked(att, n)), att), M, ODD, change=clean),
    "NaN of the hidden leaks": Mistake(by_product, M, ODD),
    "-1e9 added": Mistake(by_addition(-1e9), M, ODD, change=clean),
    "-1e9 added, NaN leaks": Mistake(by_addition(-1e9), M, ODD),
    "-10 added": Mistake(by_addition(-10), M, ODD, change=clean),
    "maximum that begins at 0": Mistake(program(top=from_zero), M, ODD, "float16", inputs="negative"),
    "maximum that begins at 0, one pass": Mistake(
        program(of_rows=lambda s: online(s, least=np.float32(0))), ON, ODD, inputs="negative"),
    "-65504 as a mask": Mistake(by_a_number(-65504), M, ODD, "bfloat16", inputs="negative"),
    "-1e6 as a mask": Mistake(by_a_number(-1e6), M, ODD, inputs="negative"),
    "maximum counts the hidden": Mistake(maximum_of_hidden, M, ODD, change=large_where_hidden),
    "not normalised": Mistake(program(total=lambda e: np.float32(1)), M, ODD),
    "normalised over the whole row": Mistake(
        lambda case, att, n: store(case, np.where(visible(len(att), n), softmax(wide(att)), np.float32(0))), M, ODD,
        change=clean),
    "normalised by the row's number": Mistake(
        program(total=lambda e: np.arange(1, len(e) + 1, dtype=np.float32)[:, None]), M, ODD),
    "scaled once more": Mistake(
        lambda case, att, n: store(case, masked(wide(att) / np.float32(np.sqrt(len(att))), n)), M, ODD),
    "sum in float16": Mistake(program(total=in_halves), M, ODD, "float16"),
    "exponentials stored, not declared": Mistake(
        lambda case, att, n: store(case, masked(att, n, exp=lambda a: keep(case, np.exp(a)))), M, ODD, "bfloat16"),
    "earlier blocks not scaled down": Mistake(program(of_rows=online, rescale=False), ON, ODD),
    "-inf less -inf": Mistake(program(of_rows=online, safe=False, block=2), ON, ODD),
    "last row missing": Mistake(whole(lambda y, n: edit(y, -1, 0)), M, ODD),
    "last element of each row missing": Mistake(
        whole(lambda y, n: edit(y, (np.arange(n, len(y)),) * 2, 0)), M, ODD),
    "first visible row missing": Mistake(whole(lambda y, n: edit(y, n, 0)), M, ODD),
    "one padding row less": Mistake(whole(lambda y, n: edit(y, (n - 1, n), np.float32(1))), M, ODD),
    "transposed": Mistake(whole(lambda y, n: y.T.copy()), M, ODD),
    "all padding: NaN": Mistake(nan_rows, M, {"T": 5}, options={"padding": "all"}),
    "all padding: ignored": Mistake(
        mask(lambda i, j, n: j <= i), M, {"T": 5}, options={"padding": "all"}, change=clean),
    "one token left: it sees itself and one more": Mistake(
        mask(lambda i, j, n: (n - 1 <= j) & (j <= i)), M, ODD, options={"padding": "most"}, change=clean),
    "without padding: first row missing": Mistake(
        whole(lambda y, n: edit(y, 0, 0)), M, ODD, options={"padding": "none"}),
    "no padding taken for 4": Mistake(mask(lambda i, j, n: ((n or 4) <= j) & (j <= i)), M, ODD, inputs="lower_edge"),
    "all padding: the last row sees itself": Mistake(
        mask(lambda i, j, n: (min(n, len(i) - 1) <= j) & (j <= i)), M, ODD, change=clean, inputs="upper_edge"),
    "first output again": Mistake(first_again(program()), M, ODD, calls=2),
}  # fmt: skip
