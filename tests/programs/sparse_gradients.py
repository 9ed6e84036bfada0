"""Gradients of attention, interaction and look-ups in NumPy, right ones and wrong ones: what gradients.py has of other kernels."""

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import (
    TF32,
    bfloat16_cut,
    edit,
    first_again,
    given,
    half,
    in_halves,
    is_16,
    is_tf32,
    keep,
    library,
    normed,
    pairwise,
    rounded_to,
    same,
    store,
    wide,
)
from programs.embedding import lookup, modulus
from programs.padded_attention import visible, without_padding


def by_keys(a, times=same):
    """aᵀ, for sums over the rows."""
    return times(a).swapaxes(-1, -2)


def attention_gradient(
    stored=lambda case, a: a, normed=True, inner=lambda delta: delta, seen_by_dq=visible, for_dv=same, for_dk=same, dk_scale=1.0,
    dq_scale=1.0, ds_of=lambda p, dp, delta: p * (dp - delta), keys=without_padding, edited=lambda dq, dk, dv: (dq, dk, dv),
    product=library, delta_of=lambda dy, y, p, dp: pairwise(dy * y),
):  # fmt: skip
    """Probabilities from the logarithm of each row's sum, delta from y; pieces of it can be replaced."""

    def run(case, q, k, v, n_padd, dy):
        n, (T, D) = n_padd[:, None], q.shape[-2:]
        scale, shown = np.float32(1 / np.sqrt(D)), visible(T, n)
        raw, (q, k, v, dy) = k, (without_padding(a, n) for a in (q, k, v, dy))
        scores = product(q, by_keys(k)) * scale
        hidden = np.where(shown, scores, -np.inf)
        highest = np.maximum(hidden.max(axis=-1, keepdims=True), np.float32(-3e38))
        lse = highest + np.log(pairwise(np.exp(hidden - highest)))
        p = np.where(shown, np.exp(scores - (lse if normed else highest)), np.float32(0))
        y = stored(case, product(stored(case, np.where(shown, np.exp(scores - lse), np.float32(0))), v))
        dp = product(dy, by_keys(v))
        delta = inner(delta_of(dy, y, p, dp))
        ds = stored(case, ds_of(p, dp, delta))
        shown_to_dq = seen_by_dq(T, n)
        ds_of_dq = (
            ds
            if seen_by_dq is visible
            else np.where(shown_to_dq, ds_of(np.exp(scores - lse), dp, delta), np.float32(0))
        )
        dq = product(ds_of_dq, keys(raw, n)) * scale * np.float32(dq_scale)
        dk = product(by_keys(for_dk(ds)), q) * scale * np.float32(dk_scale)
        dv = product(by_keys(for_dv(stored(case, p))), dy)
        # a row that sees nothing: exp(… - -inf)
        clean = (
            np.where(np.isnan(a) & (np.arange(T)[:, None] < n[..., None, None]), np.float32(0), a) for a in (dq, dk, dv)
        )
        return tuple(store(case, a) for a in edited(*clean))

    return run


def triangle(case, dy, D, upper=True, lower=True, diagonal=0.0, order=lambda i, j: (i, j)):
    """The symmetric matrix of the gradients of the products (M, F + 1, F + 1)."""
    F = case.sizes["F"]
    matrix = np.zeros((len(dy), F + 1, F + 1), np.float32)
    i, j = order(*np.tril_indices(F + 1, -1))
    matrix[:, i, j] = wide(dy)[:, D:] * np.float32(lower)
    matrix[:, j, i] += wide(dy)[:, D:] * np.float32(upper)
    return matrix + np.float32(diagonal) * np.eye(F + 1, dtype=np.float32)


def interaction_gradient(own=1.0, own_of=0, rows=1.0, columns=1.0, edited=same, **hooks):
    """(ddense, dsparse) of either form."""

    def run(case, dense, sparse, dy):
        M, F, D = len(dense), case.sizes["F"], case.sizes["D"]
        stack = np.concatenate([wide(dense)[:, None], wide(sparse)], axis=1)
        if case.options["form"] == "dot":
            through = triangle(case, dy, D, **hooks) @ stack
            through[:, own_of] += wide(dy)[:, :D] * np.float32(own)
        else:
            x, matrix = stack.reshape(M, -1, 1), wide(dy).reshape(M, (F + 1) * D, (F + 1) * D)
            both = np.float32(rows) * (matrix @ x) + np.float32(columns) * (by_keys(matrix) @ x)
            through = both.reshape(M, F + 1, D)
        through = edited(through)
        return store(case, through[:, 0]), store(case, through[:, 1:])

    return run


def table_gradient(add, look=None, base=same, scaled=same, last=None, hole=0.0, narrow=False):
    """dtables by `add(sums, rows, dy)` with rows (L,) and dy (L, D) in float32, or as they are stored (`narrow`)."""

    def run(case, ids, tables, offsets, *known_and_dy):
        *known, dy = known_and_dy
        rows = [base(offsets)[f] + of(case, look)(ids[:, f], offsets, *known or [None], f) for f in range(ids.shape[1])]
        rows, dy = np.stack(rows, axis=1).reshape(-1)[:last], dy.reshape(-1, tables.shape[1])[:last]
        sums = np.full(tables.shape, hole, tables.dtype if narrow else np.float32)
        add(sums, rows, scaled(dy if narrow else wide(dy)))
        return store(case, sums)

    return run


def of(case, look):
    return look or (modulus if case.options["hashing"] == "modulus" else lookup)


def added(sums, rows, dy):
    np.add.at(sums, rows, dy)


def segments(sums, rows, dy):
    """Sorted, and each row's summed in pairs."""
    order = np.argsort(rows, kind="stable")
    found, begins = np.unique(rows[order], return_index=True)
    for row, part in zip(found, np.split(dy[order], begins[1:]), strict=True):
        sums[row] = pairwise(part.T)[:, 0]


def written(sums, rows, dy):
    sums[rows] = dy


def first_alone(sums, rows, dy):
    sums[rows[::-1]] = dy[::-1]


def averaged(sums, rows, dy):
    added(sums, rows, dy)
    sums /= np.maximum(np.bincount(rows, minlength=len(sums)), 1)[:, None].astype(np.float32)


def twice_at_most(sums, rows, dy):
    """What a block sums is written by its last look-up alone: of neighbours with one row, each pair."""
    sums[rows] = dy + np.where((np.roll(rows, 1) == rows)[:, None], np.roll(dy, 1, axis=0), np.float32(0))


def of_a_warp(sums, rows, dy):
    """32 look-ups of a row at most."""
    for row in np.unique(rows):
        sums[row] = dy[rows == row][:32].sum(axis=0)


def in_float16(sums, rows, dy):
    """Every row's sum in float16."""
    order = np.argsort(rows, kind="stable")
    found, begins = np.unique(rows[order], return_index=True)
    for row, part in zip(found, np.split(dy[order], begins[1:]), strict=True):
        sums[row] = in_halves(part.T)[:, 0]


def from_probabilities(dy, y, p, dp):
    """The sum that dy * y is as well."""
    return pairwise(p * dp)


STAGED = ("probabilities", "dscaled", "output")
CORRECT = {
    "padded_attention": {
        "from the rows' sums": Program(attention_gradient()),
        "distributed": Program(attention_gradient(ds_of=lambda p, dp, delta: p * dp - p * delta)),
        "stored on the way": Program(attention_gradient(stored=keep), STAGED, is_16),
        "delta from the probabilities": Program(attention_gradient(delta_of=from_probabilities)),
        **{n: Program(attention_gradient(product=p), (), is_tf32) for n, p in TF32.items()},
        **{
            f"{n}, delta from the probabilities": Program(
                attention_gradient(product=p, delta_of=from_probabilities), (), is_tf32
            )
            for n, p in TF32.items()
        },
    },
    "interaction": {"symmetric": Program(interaction_gradient())},
    "embedding": {
        "added": Program(table_gradient(added)),
        "segments": Program(table_gradient(segments)),
        "added as stored": Program(table_gradient(added, narrow=True), ("accumulated",), is_16),
    },
}

TOKENS = {"B": 2, "H": 3, "T": 37, "D": 19}
PAIRS, TABLES, MANY = (
    {"M": 37, "F": 5, "D": 7},
    {"M": 37, "F": 5, "V": 211, "D": 13},
    {"M": 512, "F": 3, "V": 67, "D": 5},
)
OUTER, LOOKUP = {"form": "outer"}, {"hashing": "lookup"}
F, S = "from the rows' sums", "stored on the way"


def of_attention(dtype="float32", program=F, **hooks):
    staged = {"stored": keep} if program == S else {}
    return Mistake(attention_gradient(**staged, **hooks), program, TOKENS, dtype, mode="backward")


def of_tf32(**hooks):
    product = "tf32 cut off"
    return Mistake(
        attention_gradient(product=TF32[product], **hooks), product, TOKENS, precision="tf32", mode="backward"
    )


def of_pairs(dtype="float32", options=None, **hooks):
    return Mistake(interaction_gradient(**hooks), "symmetric", PAIRS, dtype, options=options or {}, mode="backward")


def of_tables(add, dtype="float32", sizes=TABLES, options=None, **hooks):
    return Mistake(table_gradient(add, **hooks), "added", sizes, dtype, options=options or {}, mode="backward")


def causal_forgotten(T, n):
    return np.broadcast_to(np.asarray(n)[..., None, None] <= np.arange(T), (*np.shape(n), T, T))


def diagonal_hidden(a):
    return a * (1 - np.eye(a.shape[-1], dtype=np.float32))


MISTAKES = {
    "padded_attention": {
        "dy by way of float16": Mistake(given(attention_gradient(), -1, half), F, TOKENS, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(attention_gradient(), -1, normed), F, TOKENS, mode="backward", inputs="upstream"),
        "delta of 11 bits": of_attention(inner=lambda delta: rounded_to(delta, 11)),
        "dK scaled twice in one head": of_attention(
            "bfloat16", S, edited=lambda dq, dk, dv: (dq, edit(dk, np.s_[:, 1], dk[:, 1] / np.float32(np.sqrt(19))), dv)),
        "last key missing from dV": of_attention("float16", S, for_dv=lambda p: edit(p, np.s_[..., -1], 0)),
        "last tokens of dK from those before": of_attention(
            "bfloat16", S, edited=lambda dq, dk, dv: (dq, edit(dk, np.s_[..., -5:, :], dk[..., -10:-5, :]), dv)),
        "the mask forgotten in dQ only": of_attention(seen_by_dq=causal_forgotten),
        "the mask forgotten in dQ only, bfloat16": of_attention("bfloat16", S, seen_by_dq=causal_forgotten),
        "NaN of padding in dQ only": of_attention(keys=lambda k, n: wide(k)),
        "dK from the unscaled scores": of_attention(dk_scale=np.sqrt(19)),
        "dQ from the unscaled scores": of_attention("float16", S, dq_scale=np.sqrt(19)),
        "dQ scaled twice": of_attention(dq_scale=1 / np.sqrt(19)),
        "delta forgotten": of_attention(ds_of=lambda p, dp, delta: p * dp),
        "delta forgotten in bfloat16": of_attention("bfloat16", S, ds_of=lambda p, dp, delta: p * dp),
        "delta forgotten in tf32": of_tf32(ds_of=lambda p, dp, delta: p * dp),
        "delta of the row before in tf32": of_tf32(inner=lambda delta: np.roll(delta, 1, axis=-2)),
        "delta in bfloat16 in tf32": of_tf32(inner=bfloat16_cut),
        "the mask forgotten in dQ only, tf32": of_tf32(seen_by_dq=causal_forgotten),
        "the diagonal hidden in dK, tf32": of_tf32(for_dk=diagonal_hidden),
        "delta of the row before": of_attention(inner=lambda delta: np.roll(delta, 1, axis=-2)),
        "delta of another head": of_attention(inner=lambda delta: np.roll(delta, 1, axis=1)),
        "delta in float16": of_attention(inner=lambda delta: wide(delta.astype(np.float16))),
        "delta added": of_attention(ds_of=lambda p, dp, delta: p * (dp + delta)),
        "not times p": of_attention(ds_of=lambda p, dp, delta: np.where(p > 0, dp - delta, 0)),
        "weights that are not divided": of_attention(normed=False),
        "the diagonal hidden in dV": of_attention(for_dv=diagonal_hidden),
        "the diagonal hidden in dK": of_attention(for_dk=diagonal_hidden),
        "last row missing from dV": of_attention(for_dv=lambda p: edit(p, np.s_[..., -1, :], 0)),
        "last block of rows missing from dK": of_attention(for_dk=lambda ds: edit(ds, np.s_[..., 32:, :], 0)),
        "dV of the next token": of_attention(for_dv=lambda p: np.roll(p, 1, axis=-1)),
        "dK and dV exchanged": of_attention(edited=lambda dq, dk, dv: (dq, dv, dk)),
        "padding of dQ never written": of_attention(edited=lambda dq, dk, dv: (edit(dq, np.s_[..., 0, :], 1), dk, dv)),
        "padding of dV never written": of_attention(edited=lambda dq, dk, dv: (dq, dk, edit(dv, np.s_[..., 3, :], np.nan))),
        "first head again": of_attention(edited=lambda dq, dk, dv: (dq, dk, dv[:, :1] + 0 * dv)),
        "p and ds stored, not declared": Mistake(attention_gradient(stored=keep), F, TOKENS, "bfloat16", mode="backward"),
        "first gradient again": Mistake(first_again(attention_gradient()), F, TOKENS, calls=2, mode="backward"),
    },
    "interaction": {
        "dy by way of float16": Mistake(given(interaction_gradient(), -1, half), "symmetric", PAIRS, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(interaction_gradient(), -1, normed), "symmetric", PAIRS, mode="backward", inputs="upstream"),
        "upper triangle only": of_pairs(lower=0),
        "lower triangle only": of_pairs(upper=0),
        "lower triangle only in bfloat16": of_pairs("bfloat16", upper=0),
        "both triangles twice": of_pairs(upper=2, lower=2),
        "a diagonal that is not 0": of_pairs(diagonal=0.1),
        "triangle column by column": of_pairs(order=lambda i, j: (i[np.lexsort((i, j))], j[np.lexsort((i, j))])),
        "dense's pass-through forgotten": of_pairs(own=0),
        "dense's pass-through forgotten in float16": of_pairs("float16", own=0),
        "dense's pass-through in the first sparse vector": of_pairs(own_of=1),
        "dense's pass-through twice": of_pairs(own=2),
        "dense is its pass-through alone": of_pairs(edited=lambda t: edit(t, np.s_[:, 0], 0)),
        "last vector missing": of_pairs(edited=lambda t: edit(t, np.s_[:, -1], 0)),
        "last column of each vector missing": of_pairs(edited=lambda t: edit(t, np.s_[..., -1], 0)),
        "gradient of the sample before": of_pairs(edited=lambda t: np.roll(t, 1, axis=0)),
        "outer: rows alone": of_pairs(options=OUTER, columns=0),
        "outer: columns alone": of_pairs(options=OUTER, rows=0),
        "outer: columns alone in bfloat16": of_pairs("bfloat16", OUTER, rows=0),
        "outer: rows twice": of_pairs(options=OUTER, rows=2, columns=0),
        "outer: first value missing": of_pairs(options=OUTER, edited=lambda t: edit(t, np.s_[:, 0, 0], 0)),
    },
    "embedding": {
        "dy by way of float16": Mistake(given(table_gradient(added), -1, half), "added", TABLES, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(table_gradient(added), -1, normed), "added", TABLES, mode="backward", inputs="upstream"),
        "last look-up twice": of_tables(lambda *a: (added(*a), added(a[0], a[1][-1:], a[2][-1:]))),
        "ids that occur twice written instead of added": of_tables(written),
        "ids that occur twice written instead of added, bfloat16": of_tables(written, "bfloat16"),
        "first occurrence alone": of_tables(first_alone),
        "two neighbours at most": of_tables(twice_at_most),
        "a mean over occurrences": of_tables(averaged),
        "last look-up missing": of_tables(added, last=-1),
        "last block of look-ups missing": of_tables(added, last=160),
        "the first feature's table for all": of_tables(added, base=np.zeros_like),
        "tables one row late": of_tables(added, look=lambda ids, o, known, f: (ids + 2) % (o[f + 1] - o[f])),
        "rows of no look-up are not 0": of_tables(added, hole=1e-3),
        "32 look-ups of a row at most": Mistake(
            table_gradient(of_a_warp), "added", TABLES, mode="backward", inputs="repeated"),
        "sums in float16": of_tables(in_float16, sizes=MANY),
        "stored in bfloat16 on the way, not declared": of_tables(added, "bfloat16", MANY, narrow=True),
        "scaled by the batch": of_tables(added, scaled=lambda dy: dy / 37),
        "lookup: unknown ids to the first row": of_tables(
            added, options=LOOKUP, look=lambda *a: np.where((at := lookup(*a)) == a[1][a[3] + 1] - a[1][a[3]] - 1, 0, at)),
        "lookup: ids that occur twice written": of_tables(written, options=LOOKUP),
        "first gradient again": Mistake(first_again(table_gradient(added)), "added", TABLES, calls=2, mode="backward"),
    },
}  # fmt: skip
