"""splacc: C = A @ B, sigmoid of the left half of its columns times tanh of the right."""

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
    of,
    same,
    store,
    tf32_cut,
    tf32_nearest,
    wide,
)


def gate(left, right):
    return activate("sigmoid", left) * activate("tanh", right)


def gate_exp(left, right):
    return activate_exp("sigmoid", left) * activate_exp("tanh", right)


def fused(case, A, B, product=library, gate=gate, split=lambda C: np.split(C, 2, axis=1), rows=same):
    return store(case, gate(*split(product(rows(wide(A)), columns(case, B)))))


def two_accumulators(case, A, B, product=library):
    """The halves multiplied apart, in one pass over A."""
    B_left, B_right = np.split(columns(case, B), 2, axis=1)
    return store(case, gate(product(wide(A), B_left), product(wide(A), B_right)))


def interleaved(case, A, B, product=library, first=0):
    """Columns of both halves alternate in one product, which is split in pairs at the end."""
    B = columns(case, B)
    mixed = np.stack(np.split(B, 2, axis=1), axis=2).reshape(B.shape)
    C = product(wide(A), mixed).reshape(len(A), -1, 2)
    return store(case, gate(C[..., first], C[..., 1 - first]))


def staged(case, A, B, product=library):
    left, right = np.split(keep(case, product(wide(A), columns(case, B))), 2, axis=1)
    return store(case, keep(case, activate("sigmoid", left)) * keep(case, activate("tanh", right)))


def each_step(case, A, B):
    """exp, sum and inverse of the sigmoid stored, too."""
    step = partial(keep, case)
    left, right = np.split(step(wide(A) @ columns(case, B)), 2, axis=1)
    return store(case, step(1 / step(1 + step(np.exp(-left)))) * step(np.tanh(right)))


def gate_expm1(left, right):
    """tanh without a cancellation, and a sigmoid whose exponential never overflows."""
    small, less = np.exp(-np.abs(left)), np.expm1(-2 * np.abs(right))
    return np.where(left < 0, small, np.float32(1)) / (1 + small) * np.copysign(-less / (2 + less), right)


CORRECT = {
    "fused, by expm1": Program(partial(fused, gate=gate_expm1)),
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_ieee) for n, p in PRODUCTS.items()},
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_16) for n, p in TENSOR_CORES.items()},
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_tf32) for n, p in TF32.items()},
    "fused, by exp": Program(partial(fused, gate=gate_exp)),
    "two accumulators": Program(two_accumulators),
    "interleaved": Program(interleaved),
    "interleaved, tensor core of 8": Program(partial(interleaved, product=TENSOR_CORES["tensor core of 8"]), (), is_16),
    "staged": Program(staged, ("product", "sigmoid", "tanh")),
    "each step": Program(each_step, ("product", "activation", "sigmoid", "tanh"), is_16),
    "subnormals flushed": Program(
        lambda case, A, B: flush(fused(case, flush(A), flush(B))), ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"M": 48, "K": 300, "N": 80}
LONG = "K"
ODD, SQUARE = {"M": 37, "K": 131, "N": 83}, {"M": 48, "K": 48, "N": 48}
F, I, F16 = "fused, library", "interleaved", "fused, tensor core of 8"


def with_(**hooks):
    return partial(fused, **hooks)


def whole(change):
    return lambda *inputs: change(fused(*inputs))


def gated(left, right):
    """Another gate: functions of the left and of the right half."""
    return with_(gate=lambda z1, z2: left(z1) * right(z2))


def sigmoid(z):
    return activate("sigmoid", z)


def halves_of_pairs(case, A, B):
    """The interleaved product split in halves, not in pairs."""
    B = columns(case, B)
    mixed = np.stack(np.split(B, 2, axis=1), axis=2).reshape(B.shape)
    return store(case, gate(*np.split(wide(A) @ mixed, 2, axis=1)))


def swapped_at_the_end(case, A, B):
    """The pair of the last column the other way round."""
    other = fused(case, A, B, split=lambda C: np.split(C, 2, axis=1)[::-1])
    return edit(fused(case, A, B), np.s_[:, -1], other[:, -1])


MISTAKES = {
    "A by way of float16": Mistake(given(fused, 0, half), F16, ODD, "bfloat16", inputs="wide"),
    "log2(e) of five digits": Mistake(gated(lambda z: 1 / (1 + np.exp2(np.float32(-1.4427) * z)), np.tanh), F, ODD),
    "tanh 1 beyond 3": Mistake(gated(sigmoid, lambda z: np.where(np.abs(z) > 3, np.sign(z), np.tanh(z))), F16, ODD, "bfloat16"),
    "the last pair swapped": Mistake(swapped_at_the_end, F16, ODD, "bfloat16"),
    "halves swapped": Mistake(with_(split=lambda C: np.split(C, 2, axis=1)[::-1]), F, ODD),
    "pairs swapped": Mistake(partial(interleaved, first=1), I, ODD),
    "pairs instead of halves": Mistake(with_(split=lambda C: (C[:, ::2], C[:, 1::2])), F, ODD),
    "halves of the interleaved product": Mistake(halves_of_pairs, I, ODD),
    "left half without the activation": Mistake(gated(same, np.tanh), F, ODD),
    "right half without the activation": Mistake(gated(sigmoid, same), F, ODD),
    "tanh of both": Mistake(gated(np.tanh, np.tanh), F, ODD),
    "sigmoid of both": Mistake(gated(sigmoid, sigmoid), F, ODD),
    "sum for product": Mistake(with_(gate=lambda z1, z2: sigmoid(z1) + np.tanh(z2)), F, ODD),
    "tanh by sigmoid, 2 forgotten": Mistake(gated(sigmoid, lambda z: 2 * sigmoid(z) - 1), F, ODD),
    "sigmoid of -z": Mistake(gated(lambda z: sigmoid(-z), np.tanh), F, ODD),
    "hard sigmoid": Mistake(gated(lambda z: np.clip(z / 6 + np.float32(0.5), 0, 1), np.tanh), F, ODD),
    "tanh in float16": Mistake(gated(sigmoid, lambda z: wide(np.tanh(z.astype(np.float16)))), F, ODD),
    "tanh cut off at 3": Mistake(gated(sigmoid, lambda z: np.tanh(np.clip(z, -2, 2))), F, ODD),
    "exp overflows in tanh": Mistake(
        gated(sigmoid, lambda z: (np.exp(2 * z) - 1) / (np.exp(2 * z) + 1)), F, ODD, inputs="large_mean"),
    "NaN made 0": Mistake(whole(np.nan_to_num), F, ODD, inputs="nan"),
    "last K missing": Mistake(with_(rows=lambda A: edit(A, np.s_[:, -1], 0)), F, ODD),
    "last K-block missing": Mistake(with_(rows=lambda A: edit(A, np.s_[:, 128:], 0)), F, ODD),
    "first K-block twice": Mistake(with_(rows=lambda A: np.hstack([2 * A[:, :32], A[:, 32:]])), F, ODD),
    "one program: rows past the first block missing": Mistake(whole(lambda y: edit(y, np.s_[32:], 0)), F, ODD),
    "last row missing": Mistake(whole(lambda y: edit(y, -1, 0)), F, ODD),
    "last column missing": Mistake(whole(lambda y: edit(y, np.s_[:, -1], 0)), F, ODD),
    "float16 accumulation": Mistake(with_(product=half_sums), F16, ODD, "float16"),
    "float16 accumulation of bfloat16": Mistake(with_(product=half_sums), F16, ODD, "bfloat16"),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), F, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), F, ODD),
    "bfloat16 where tf32 was asked": Mistake(with_(product=of(bfloat16_cut)), "fused, tf32 cut off", ODD, precision="tf32"),
    "stored but not declared": Mistake(staged, F16, ODD, "bfloat16"),
    "stored but not declared, float16": Mistake(staged, F16, ODD, "float16"),
    "layout of B ignored": Mistake(
        lambda case, A, B: fused(case, A, B.reshape(48, 96).T.copy()), F, SQUARE, options={"w_layout": "nk"}),
    "transposed": Mistake(whole(lambda y: y.T.copy()), F, SQUARE),
    "columns one off": Mistake(whole(lambda y: np.roll(y, 1, axis=1)), F, ODD),
    "one element without its last K": Mistake(
        lambda case, A, B: edit(fused(case, A, B), (3, 5), fused(case, edit(A, np.s_[:, -1], 0), B)[3, 5]), F, ODD),
    "zeros": Mistake(whole(np.zeros_like), F, ODD),
    "first output again": Mistake(first_again(fused), F, ODD, calls=2),
}  # fmt: skip
