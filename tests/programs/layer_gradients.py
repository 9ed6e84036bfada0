"""Gradients of the linear layers and of add_mul_act in NumPy, right ones and wrong ones, as gradients.py has those of softmax and lola."""

import numpy as np
from scipy.special import erf

from programs import Mistake, Program
from programs.arithmetic import edit, given, half, is_16, keep, normed, same, store, wide
from programs.gradients import total

ODD = {"M": 37, "K": 131, "N": 83}
WIDTHS = {"M": 37, "LAYERS": 3, "N0": 13, "N1": 131, "N2": 67, "N3": 5, "N4": 1}
LORA = {"M": 37, "K": 131, "N": 203, "R": 8}
ROWS = {"M": 37, "N": 203}
F, S = "float32 inside", "stored on the way"


def kept(case, a):
    """Nothing is stored on the way."""
    return a


def upright(case, W):
    return W.T if case.options["w_layout"] == "nk" else W


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def gelu(z):
    return z * (1 + erf(z / np.float32(np.sqrt(2)))) / 2


def gelu_slope(z):
    return (1 + erf(z / np.float32(np.sqrt(2)))) / 2 + z * np.exp(-z * z / 2) / np.float32(np.sqrt(2 * np.pi))


def positive(z):
    return (z > 0).astype(np.float32)


def linear(case, x, W, dz, rows=slice(None), sum_rows=total, W_of=same, x_of=same):
    """(dx, dW as it is stored, db) of x @ W + b, where W stands upright."""
    dW = x_of(x)[rows].T @ dz[rows]
    return dz @ W_of(W).T, upright(case, dW), sum_rows(dz)


def geglu(
    stored=kept,
    dz_of=lambda dy, z1, z2: (dy * gelu(z2), dy * z1 * gelu_slope(z2)),
    bias=same,
    edited=lambda *g: g,
    **hooks,
):
    def run(case, x, W, b, dy):
        x, W, b, dy = map(wide, (x, W, b, dy))
        W = upright(case, W)
        z1, z2 = np.split(stored(case, x @ W + bias(b)), 2, axis=1)
        dz = stored(case, np.concatenate(dz_of(dy, z1, z2), axis=1))
        return tuple(store(case, g) for g in edited(*linear(case, x, W, dz, **hooks)))

    return run


def splacc_dz(dy, left, right):
    s, t = sigmoid(left), np.tanh(right)
    return dy * t * s * (1 - s), dy * s * (1 - t * t)


def splacc(stored=kept, dz_of=splacc_dz, **hooks):
    def run(case, A, B, dy):
        A, B, dy = map(wide, (A, B, dy))
        B = upright(case, B)
        dz = stored(case, np.concatenate(dz_of(dy, *np.split(stored(case, A @ B), 2, axis=1)), axis=1))
        return tuple(store(case, g) for g in linear(case, A, B, dz, **hooks)[:2])

    return run


def lora(
    stored=kept,
    scale_of=same,
    through=same,
    dA_scale=same,
    dB_scale=same,
    adapter=same,
    slope_of=positive,
    edited=lambda *g: g,
    **hooks,
):
    """`through` is what dx gets through the adapter, the scales are those of single gradients."""

    def run(case, x, scale, W, b, A, B, dy):
        x, scale, W, b, A, B, dy = map(wide, (x, scale, W, b, A, B, dy))
        W, scale = upright(case, W), scale_of(scale)
        xa = stored(case, x @ A)
        z = stored(case, x @ W + b + stored(case, scale * xa) @ B)
        dz = stored(case, dy * slope_of(z)) if case.options["activation"] == "relu" else dy
        dxa = stored(case, scale * (dz @ B.T))
        dx, dW, db = linear(case, x, W, dz, **hooks)
        dA = x.T @ (dxa / scale * dA_scale(scale))
        gradients = dx + through(dxa @ A.T), dW, db, dA, dB_scale(scale) * (adapter(xa).T @ dz)
        return tuple(store(case, g) for g in edited(*gradients))

    return run


def last_slope(case, z):
    """The derivative of the last activation."""
    s = sigmoid(z)
    return {"none": np.ones_like(z), "relu": positive(z), "sigmoid": s * (1 - s)}[case.options["last"]]


def mlp(
    stored=kept, mask_of=lambda i, results: positive(results[i]), last=last_slope, at=None, edited=lambda *g: g, **hooks
):
    """`mask_of` gives the slope behind layer i from all results; `hooks` are those of layer `at`, or of all."""

    def run(case, x, *layers_and_dy):
        *layers, dy = map(wide, layers_and_dy)
        h, below, results = wide(x), [], []
        for W, b in zip(layers[::2], layers[1::2], strict=True):
            below.append(h)
            results.append(h @ upright(case, W) + b)
            h = stored(case, np.where(results[-1] < 0, np.float32(0), results[-1]))
        dz, gradients = stored(case, dy * last(case, results[-1])), []
        for i in reversed(range(len(results))):
            own = hooks if at in (None, i) else {}
            dx, dW, db = linear(case, below[i], upright(case, layers[2 * i]), dz, **own)
            gradients = [dW, db, *gradients]
            dz = stored(case, dx * mask_of(i - 1, results)) if i else dx
        return tuple(store(case, g) for g in edited(dz, *gradients))

    return run


def add_mul_act(
    slope=positive, multiplier=same, sum_rows=total, bias=same, z_of=same, stored=kept, edited=lambda *g: g
):
    def run(case, x, z, scale, b, dy):
        x, z, scale, b, dy = map(wide, (x, z, scale, b, dy))
        dx = dy * slope(stored(case, x + scale * z_of(z) + bias(b)))
        return tuple(store(case, g) for g in edited(dx, multiplier(scale) * dx, sum_rows(dx)))

    return run


def both(make, points, **stored_hooks):
    """The program that computes in float32, and the one that stores on the way where that rounds."""
    return {F: Program(make()), S: Program(make(stored=keep, **stored_hooks), points, is_16)}


CORRECT = {
    "geglu": both(geglu, ("bias", "dz")),
    "splacc": both(splacc, ("product", "dz")),
    "lora_linear": both(lora, ("xa", "scaled_xa", "sum", "dz", "dxa")),
    "fused_mlp": both(mlp, ("hidden", "dz")),
    "add_mul_act": both(add_mul_act, ("bias",)),
}


def wrong(make, sizes):
    """How mistakes of a kernel are written: in which dtype, from which correct program, and what is replaced."""

    def mistake(dtype="float32", of=F, options=None, **hooks):
        staged = {"stored": keep} if of == S else {}
        return Mistake(make(**staged | hooks), of, sizes, dtype, options=options or {}, mode="backward")

    return mistake


of_geglu, of_splacc, of_lora = wrong(geglu, ODD), wrong(splacc, ODD), wrong(lora, LORA)
of_mlp, of_rows = wrong(mlp, WIDTHS), wrong(add_mul_act, ROWS)


def exchanged(dz_of):
    return lambda dy, left, right: dz_of(dy, left, right)[::-1]


def first_row(dz):
    return dz[0]


def all_but_the_last(dz):
    return total(dz[:-1])


def in_halves(dz):
    return wide(np.cumsum(dz.astype(np.float16), axis=0, dtype=np.float16)[-1])


MISTAKES = {
    "geglu": {
        "dy by way of float16": Mistake(given(geglu(), -1, half), F, ODD, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(geglu(), -1, normed), F, ODD, mode="backward", inputs="upstream"),
        "1 / sqrt(2 pi) of four digits": of_geglu(dz_of=lambda dy, z1, z2: (
            dy * gelu(z2), dy * z1 * (gelu_slope(z2) - np.float32(0.39894228 - 0.3989) * z2 * np.exp(-z2 * z2 / 2)))),
        "gradients of gate and value exchanged": of_geglu(dz_of=exchanged(lambda dy, z1, z2: (dy * gelu(z2), dy * z1 * gelu_slope(z2)))),
        "gradients of gate and value exchanged in bfloat16": of_geglu(
            "bfloat16", S, dz_of=exchanged(lambda dy, z1, z2: (dy * gelu(z2), dy * z1 * gelu_slope(z2)))),
        "gate and value exchanged before the slope": of_geglu(dz_of=lambda dy, z1, z2: (dy * gelu(z1), dy * z2 * gelu_slope(z1))),
        "the value forgotten before the gate": of_geglu(dz_of=lambda dy, z1, z2: (dy * gelu(z2), dy * gelu_slope(z2))),
        "the gate's slope forgotten": of_geglu(dz_of=lambda dy, z1, z2: (dy * gelu(z2), dy * z1)),
        "the slope without its second term": of_geglu(dz_of=lambda dy, z1, z2: (dy * gelu(z2), dy * z1 * (1 + erf(z2 / np.float32(np.sqrt(2)))) / 2)),
        "the gate's gradient of the value": of_geglu(dz_of=lambda dy, z1, z2: (dy * z2, dy * z1 * gelu_slope(z2))),
        "the bias forgotten before the slope": of_geglu(bias=np.zeros_like),
        "db of the first row alone": of_geglu(sum_rows=first_row),
        "last row missing from db": of_geglu(sum_rows=all_but_the_last),
        "db in float16": of_geglu(sum_rows=in_halves),
        "last row missing from dW": of_geglu(rows=slice(None, -1)),
        "last row missing from dW in bfloat16": of_geglu("bfloat16", S, rows=slice(None, -1)),
        "dx by the halves of W exchanged": of_geglu(W_of=lambda W: np.roll(W, ODD["N"], axis=1)),
        "last column of dx missing": of_geglu(edited=lambda dx, dW, db: (edit(dx, np.s_[:, -1], 0), dW, db)),
        "dW's halves exchanged, stored (2N, K)": of_geglu(
            options={"w_layout": "nk"}, edited=lambda dx, dW, db: (dx, np.roll(dW, ODD["N"], axis=0), db)),
        "dz stored, not declared": of_geglu("float16", stored=keep),
    },
    "splacc": {
        "dy by way of float16": Mistake(given(splacc(), -1, half), F, ODD, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(splacc(), -1, normed), F, ODD, mode="backward", inputs="upstream"),
        "gradients of both halves exchanged": of_splacc(dz_of=exchanged(splacc_dz)),
        "gradients of both halves exchanged in float16": of_splacc("float16", S, dz_of=exchanged(splacc_dz)),
        "sigmoid's slope forgotten": of_splacc(dz_of=lambda dy, l, r: (dy * np.tanh(r), splacc_dz(dy, l, r)[1])),
        "tanh's slope is 1 - t": of_splacc(dz_of=lambda dy, l, r: (splacc_dz(dy, l, r)[0], dy * sigmoid(l) * (1 - np.tanh(r)))),
        "sigmoid's slope is s alone": of_splacc(dz_of=lambda dy, l, r: (dy * np.tanh(r) * sigmoid(l), splacc_dz(dy, l, r)[1])),
        "last row missing from dB": of_splacc(rows=slice(None, -1)),
        "last row missing from dB in bfloat16": of_splacc("bfloat16", S, rows=slice(None, -1)),
        "one part of dB missing": of_splacc(rows=slice(None, 32), options={"w_layout": "nk"}),
        "dA by the halves of B exchanged": of_splacc(W_of=lambda B: np.roll(B, ODD["N"], axis=1)),
        "C stored, not declared": of_splacc("bfloat16", stored=keep),
    },
    "lora_linear": {
        "dy by way of float16": Mistake(given(lora(), -1, half), F, LORA, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(lora(), -1, normed), F, LORA, mode="backward", inputs="upstream"),
        "the adapter's share of dx forgotten": of_lora(through=np.zeros_like),
        "the adapter's share of dx forgotten in bfloat16": of_lora("bfloat16", S, through=np.zeros_like),
        "the scale forgotten": of_lora(scale_of=np.ones_like),
        "the scale forgotten in dA": of_lora(dA_scale=np.ones_like),
        "the scale forgotten in dB": of_lora(dB_scale=np.ones_like),
        "the scale forgotten in dB in float16": of_lora("float16", S, dB_scale=np.ones_like),
        "the scale squared in dA": of_lora(dA_scale=np.square),
        "dB from another column of x @ A": of_lora(adapter=lambda xa: np.roll(xa, 1, axis=1)),
        "dB without the last row": of_lora(adapter=lambda xa: edit(xa, -1, 0)),
        "db of the first row alone": of_lora(sum_rows=first_row),
        "last row missing from db": of_lora(sum_rows=all_but_the_last),
        "last row missing from dW": of_lora(rows=slice(None, -1)),
        "dW of a frozen layer": of_lora(edited=lambda dx, dW, *rest: (dx, np.zeros_like(dW), *rest)),
        "dA and dx of rows that follow": of_lora(edited=lambda dx, dW, db, dA, dB: (dx, dW, db, np.roll(dA, 1, axis=0), dB)),
        "one rank of dA missing": of_lora(edited=lambda dx, dW, db, dA, dB: (dx, dW, db, edit(dA, np.s_[:, -1], 0), dB)),
        "relu's slope forgotten": of_lora(options={"activation": "relu"}, slope_of=np.ones_like),
        "dxa stored, not declared": of_lora("float16", stored=keep),
    },
    "fused_mlp": {
        "dy by way of float16": Mistake(given(mlp(), -1, half), F, WIDTHS, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(mlp(), -1, normed), F, WIDTHS, mode="backward", inputs="upstream"),
        "a slope where a sum is just below 0": of_mlp(mask_of=lambda i, results: positive(results[i] + np.float32(1e-3))),
        "a leaky slope": of_mlp(mask_of=lambda i, results: np.where(results[i] > 0, np.float32(1), np.float32(1e-3))),
        "the mask of the layer above": of_mlp(mask_of=lambda i, results: np.resize(positive(results[i + 1]), results[i].shape)),
        "the mask of another row": of_mlp(mask_of=lambda i, results: positive(np.roll(results[i], 1, axis=0))),
        "no mask": of_mlp(mask_of=lambda i, results: np.ones_like(results[i])),
        "no mask in bfloat16": of_mlp("bfloat16", S, mask_of=lambda i, results: np.ones_like(results[i])),
        "the mask behind the first layer forgotten": of_mlp(
            mask_of=lambda i, results: positive(results[i]) if i else np.ones_like(results[i])),
        "the value for its mask": of_mlp(mask_of=lambda i, results: np.maximum(results[i], 0)),
        "db1 of the first row alone": of_mlp(at=0, sum_rows=first_row),
        "last row missing from db2": of_mlp(at=1, sum_rows=all_but_the_last),
        "db3 in float16": of_mlp(at=2, sum_rows=in_halves),
        "last row missing from dW1": of_mlp(at=0, rows=slice(None, -1)),
        "last row missing from dW3 in float16": of_mlp("float16", S, at=2, rows=slice(None, -1)),
        "a part of dW2 missing": of_mlp(at=1, rows=slice(32, None), options={"w_layout": "nk"}),
        "dW2 from activations of the row before": of_mlp(at=1, x_of=lambda h: np.roll(h, 1, axis=0)),
        "sigmoid's slope forgotten": of_mlp(options={"last": "sigmoid"}, last=lambda case, z: sigmoid(z)),
        "hidden layers stored, not declared": of_mlp("bfloat16", stored=keep),
    },
    "add_mul_act": {
        "dy by way of float16": Mistake(given(add_mul_act(), -1, half), F, ROWS, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(add_mul_act(), -1, normed), F, ROWS, mode="backward", inputs="upstream"),
        "the slope forgotten": of_rows(slope=np.ones_like),
        "the slope forgotten in bfloat16": of_rows("bfloat16", S, slope=np.ones_like),
        "the bias forgotten before the slope": of_rows(bias=np.zeros_like),
        "z unscaled before the slope": of_rows(z_of=lambda z: z * np.float32(2)),
        "the multiplier forgotten": of_rows(multiplier=np.ones_like),
        "the multiplier squared": of_rows(multiplier=np.square),
        "the multiplier forgotten in float16": of_rows("float16", multiplier=np.ones_like),
        "db of the first row alone": of_rows(sum_rows=first_row),
        "db a mean over the rows": of_rows(sum_rows=lambda dx: total(dx) / np.float32(37)),
        "last row missing from db": of_rows(sum_rows=all_but_the_last),
        "a share of the rows missing from db": of_rows(sum_rows=lambda dx: total(dx[:32])),
        "db in float16": of_rows(sum_rows=in_halves),
        "db of dz": of_rows(edited=lambda dx, dz, db: (dx, dz, total(dz))),
        "dx and dz exchanged": of_rows(edited=lambda dx, dz, db: (dz, dx, db)),
        "last row of dz missing": of_rows(edited=lambda dx, dz, db: (dx, edit(dz, -1, 0), db)),
    },
}  # fmt: skip
