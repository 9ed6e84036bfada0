"""Gradients in NumPy, right ones and wrong ones, by kernel: written from the mathematics and not from gradient(). The programs
compute in float32, get the inputs and then the upstream gradients, and store their gradients in the storage dtype."""

import numpy as np

from programs import Mistake, Program, sparse_gradients
from programs.arithmetic import (
    TF32,
    activate,
    edit,
    first_again,
    fp8,
    given,
    half,
    in_storage,
    is_16,
    is_bfloat16,
    is_tf32,
    keep,
    library,
    normed,
    of_blocks,
    pairwise,
    rounded_to,
    same,
    store,
    wide,
)
from programs.softmax import highest, softmax

EPS = np.float32(1e-5)


def slope(name, z):
    """The derivative of the activations that lola has."""
    if name == "gelu_tanh":
        scale = np.float32(np.sqrt(2 / np.pi))
        t = np.tanh(scale * (z + np.float32(0.044715) * z**3))
        return (1 + t) / 2 + z / 2 * (1 - t * t) * scale * (1 + np.float32(3 * 0.044715) * z * z)
    return {"none": np.ones_like(z), "relu": (z > 0).astype(np.float32)}[name]


def total(a):
    """Over the rows."""
    return pairwise(a.T)[:, 0]


def softmax_gradient(of=lambda y, dy: y * (dy - pairwise(y * dy)), kept=lambda case, y: y):
    def run(case, x, dy):
        y = kept(case, softmax(wide(x)))
        return store(case, of(y, wide(dy)))

    return run


def unnormalised(case, x, dy):
    """From exponentials and their total, which divides twice."""
    x, dy = wide(x), wide(dy)
    exponentials = np.exp(x - highest(x))
    total = pairwise(exponentials)
    return store(case, exponentials / total * (dy - pairwise(exponentials * dy) / total))


def from_logarithm(case, x, dy):
    x, dy = wide(x), wide(dy)
    y = np.exp(x - highest(x) - np.log(pairwise(np.exp(x - highest(x)))))
    return store(case, y * (dy - pairwise(y * dy)))


def softmax_gradient_by_jax(divided=lambda dy, total: dy / total, add=in_storage):
    """Each step stored, as XLA has them on a GPU: exponentials * (dy / total - sum of dy * exponentials / total²)."""

    def run(case, x, dy):
        x, dy = wide(x), wide(dy)
        exponentials = keep(case, np.exp(keep(case, x - x.max(axis=-1, keepdims=True))))
        total = keep(case, pairwise(exponentials))
        square = keep(case, 1 / keep(case, total * total))
        inner = add(case, keep(case, keep(case, dy * square) * exponentials))
        return store(case, keep(case, keep(case, divided(dy, total)) - inner) * exponentials)

    return run


def without_both(dn, hat, level, along):
    return dn - level - hat * along


def level_first(dn, hat, level, along):
    """The mean taken off before the other sum is made."""
    centred = dn - level
    return centred - hat * (pairwise(centred * hat) / dn.shape[1])


def slope_by_sigmoid(name, z):
    """GELU as z times a sigmoid."""
    if name != "gelu_tanh":
        return slope(name, z)
    scale = np.float32(2 * np.sqrt(2 / np.pi))
    s = 1 / (1 + np.exp(-scale * (z + np.float32(0.044715) * z**3)))
    return s + z * s * (1 - s) * scale * (1 + np.float32(3 * 0.044715) * z * z)


def in_tiles(a, c, tile=16):
    """A product whose sums over the rows are made tile by tile."""
    return sum(a[:, i : i + tile] @ c[i : i + tile] for i in range(0, a.shape[1], tile))


def lola_gradient(
    level=True, along=True, rstd=same, stored=lambda case, a: a, before=slope, W_of=same, n_of=same, sum_rows=total,
    rows=slice(None), db_scale=1, edited=lambda dx, dW, db: (dx, dW, db), bias=same, dz_of=lambda case, dz: dz, product=library,
    sums_of=lambda dn, hat, dz, W, z, b: (pairwise(dn), pairwise(dn * hat)), hat_of=lambda n, hat: hat, dx_of=None,
):  # fmt: skip
    """The gradients of LayerNorm, linear, activation, each piece of which can be replaced."""

    def run(case, x, W, b, dy):
        x, W, b, dy = map(wide, (x, W, b, dy))
        turned = case.options["w_layout"] == "nk"
        W = W.T if turned else W
        K = x.shape[1]
        deviation = x - pairwise(x) / K
        scale = 1 / np.sqrt(pairwise(deviation**2) / K + EPS)
        n = stored(case, deviation * scale)
        z = stored(case, product(n, W) + bias(b))
        dz = dz_of(case, stored(case, dy * before(case.options["activation"], z)))
        dn = product(dz, W_of(W).T)
        hat = hat_of(n, deviation * scale)
        of_dn, of_both = sums_of(dn, hat, dz, W, z, b)
        dx = (dx_of or without_both)(dn, hat, of_dn / K if level else 0, of_both / K if along else 0)
        dW, db = product(n_of(n)[rows].T, dz[rows]), sum_rows(dz) * np.float32(db_scale)
        dx, dW, db = edited(rstd(scale) * dx, dW, db)
        return store(case, dx), store(case, dW.T if turned else dW), store(case, db)

    return run


def from_dz(dn, hat, dz, W, z, b):
    """Both sums without dn."""
    return pairwise(dz * total(W)), pairwise(dz * (z - b))


STAGED = ("layernorm", "bias", "dz")
BY_JAX = (
    "shifted", "exponentials", "total", "inverse", "probabilities", "weighted", "partial", "inner", "share"
)  # fmt: skip
CORRECT = {
    "softmax": {
        "from y": Program(softmax_gradient()),
        "from y as it is stored": Program(softmax_gradient(kept=keep), ("probabilities",), is_16),
        "unnormalised": Program(unnormalised),
        "from the row's logarithm": Program(from_logarithm),
        "distributed": Program(softmax_gradient(lambda y, dy: y * dy - y * pairwise(y * dy))),
        "every step stored, the sum too": Program(softmax_gradient_by_jax(), BY_JAX, is_bfloat16),
    },
    "lola": {
        "float32 inside": Program(lola_gradient()),
        "stored on the way": Program(lola_gradient(stored=keep), STAGED, is_16),
        "the mean taken off first": Program(lola_gradient(dx_of=level_first)),
        "by sigmoid": Program(lola_gradient(before=slope_by_sigmoid)),
        "tile by tile": Program(lola_gradient(product=in_tiles, sum_rows=lambda dz: of_blocks(dz.T, 16)[:, 0])),
        "sums from dz": Program(lola_gradient(sums_of=from_dz)),
        "sums from dz, n as it is stored": Program(
            lola_gradient(stored=keep, sums_of=from_dz, hat_of=lambda n, hat: n), (*STAGED, "normed"), is_16
        ),
        **{n: Program(lola_gradient(product=p), (), is_tf32) for n, p in TF32.items()},
        **{
            f"{n}, sums from dz": Program(lola_gradient(product=p, sums_of=from_dz), (), is_tf32)
            for n, p in TF32.items()
        },
    },
}

ROWS, ODD = {"R": 37, "C": 131}, {"M": 37, "K": 131, "N": 203}
F, S = "float32 inside", "stored on the way"


def of_softmax(of, dtype="float32", **more):
    return Mistake(softmax_gradient(of), "from y", ROWS, dtype, mode="backward", **more)


def tiled_in_storage(case, parts):
    """Tiles of 16 rows added one after the other, the sum stored each time."""
    total_ = 0
    for part in parts:
        total_ = keep(case, total_ + part)
    return total_


def tiled_dW(case, x, W, b, dy):
    def product(a, c):
        if a.shape[1] != len(x):
            return library(a, c)
        return tiled_in_storage(case, (library(a[:, n : n + 16], c[n : n + 16]) for n in range(0, len(x), 16)))

    return lola_gradient(stored=keep, product=product)(case, x, W, b, dy)


def tiled_db(case, *arrays):
    def sum_rows(dz):
        return tiled_in_storage(case, (total(dz[n : n + 16]) for n in range(0, len(dz), 16)))

    return lola_gradient(stored=keep, sum_rows=sum_rows)(case, *arrays)


def of_jax(**hooks):
    return Mistake(
        softmax_gradient_by_jax(**hooks), "every step stored, the sum too", ROWS, "bfloat16", mode="backward"
    )


def of_lola(dtype="float32", of=F, options=None, **hooks):
    staged = {"stored": keep} if of == S else {}
    return Mistake(lola_gradient(**staged, **hooks), of, ODD, dtype, options=options or {}, mode="backward")


def slope_of_four_digits(name, z):
    t = np.tanh(np.float32(0.7978) * (z + np.float32(0.044715) * z**3))
    return (1 + t) / 2 + z / 2 * (1 - t * t) * np.float32(0.7978) * (1 + np.float32(3 * 0.044715) * z * z)


def slope_without_3(name, z):
    scale = np.float32(np.sqrt(2 / np.pi))
    t = np.tanh(scale * (z + np.float32(0.044715) * z**3))
    return (1 + t) / 2 + z / 2 * (1 - t * t) * scale * (1 + np.float32(0.044715) * z * z)


MISTAKES = {
    "softmax": {
        "dy by way of float16": Mistake(given(softmax_gradient(), -1, half), "from y", ROWS, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(softmax_gradient(), -1, normed), "from y", ROWS, mode="backward", inputs="upstream"),
        "last element missing from the sum": of_softmax(lambda y, dy: y * (dy - pairwise((y * dy)[:, :-1])), "bfloat16"),
        "the sum of 11 bits": of_softmax(lambda y, dy: y * (dy - rounded_to(pairwise(y * dy), 11))),
        "the sum forgotten": of_softmax(lambda y, dy: y * dy),
        "the sum of dy alone": of_softmax(lambda y, dy: y * (dy - pairwise(dy))),
        "the mean for the sum": of_softmax(lambda y, dy: y * (dy - pairwise(y * dy) / y.shape[1])),
        "not times y at the end": of_softmax(lambda y, dy: dy - pairwise(y * dy)),
        "y squared": of_softmax(lambda y, dy: y * y * (dy - pairwise(y * dy))),
        "the sum of another row": of_softmax(lambda y, dy: y * (dy - np.roll(pairwise(y * dy), 1, axis=0))),
        "last block missing from the sum": of_softmax(lambda y, dy: y * (dy - pairwise((y * dy)[:, :128]))),
        "one lane missing from the sum": of_softmax(lambda y, dy: y * (dy - pairwise(edit(y * dy, np.s_[:, 31::32], 0)))),
        "the sum in float16": of_softmax(lambda y, dy: y * (dy - wide(pairwise(y * dy).astype(np.float16)))),
        "dy of the row before": of_softmax(lambda y, dy: y * (np.roll(dy, 1, axis=0) - pairwise(y * dy))),
        "sign": of_softmax(lambda y, dy: y * (pairwise(y * dy) - dy)),
        "the sum of a thread's last term missing": of_jax(add=lambda case, terms: in_storage(case, terms[:, :-15])),
        "the sum one by one in 8 bits": of_jax(add=lambda case, terms: fp8(in_storage(case, terms))),
        "dy over the total of another row": of_jax(divided=lambda dy, total: dy / np.roll(total, 1, axis=0)),
        "last row missing": of_softmax(lambda y, dy: edit(y * (dy - pairwise(y * dy)), -1, 0)),
        "y stored, not declared": Mistake(softmax_gradient(kept=keep), "from y", ROWS, "bfloat16", mode="backward"),
        "first gradient again": Mistake(first_again(softmax_gradient()), "from y", ROWS, calls=2, mode="backward"),
    },
    "lola": {
        "dy by way of float16": Mistake(given(lola_gradient(), -1, half), F, ODD, mode="backward", inputs="upstream"),
        "dy divided by the largest of its row": Mistake(given(lola_gradient(), -1, normed), F, ODD, mode="backward", inputs="upstream"),
        "the slope by a root of four digits": of_lola(before=slope_of_four_digits),
        "the slope by one cubic for three": of_lola("bfloat16", S, before=slope_without_3),
        "one row of n missing from dW": of_lola("float16", S, n_of=lambda n: edit(n, 5, 0)),
        "last row twice in dW": of_lola("bfloat16", S, n_of=lambda n: edit(n, -1, 2 * n[-1])),
        "last column of dW that of its neighbour": of_lola(
            "bfloat16", S, edited=lambda dx, dW, db: (dx, edit(dW, np.s_[:, -1], dW[:, -2]), db)),
        "last db without the last row": of_lola(
            "float16", S, sum_rows=lambda dz: edit(total(dz), -1, total(dz[:-1])[-1])),
        "last k missing from the share along n": of_lola(
            sums_of=lambda dn, hat, dz, W, z, b: (pairwise(dn), pairwise((dn * hat)[:, :-1]))),
        "LayerNorm's mean forgotten": of_lola(level=False),
        "LayerNorm's mean forgotten in bfloat16": of_lola("bfloat16", S, level=False),
        "LayerNorm's share along n forgotten": of_lola(along=False),
        "LayerNorm's share along n forgotten in float16": of_lola("float16", along=False),
        "1 / deviation forgotten": of_lola(rstd=np.ones_like),
        "1 / deviation squared": of_lola(rstd=np.square),
        "1 / deviation of another row": of_lola(rstd=lambda s: np.roll(s, 1, axis=0)),
        "the activation's slope forgotten": of_lola(before=lambda name, z: np.ones_like(z)),
        "the activation for its slope": of_lola(before=activate),
        "the slope of relu": of_lola(before=lambda name, z: slope("relu", z)),
        "the slope without its second term": of_lola(
            before=lambda name, z: (1 + np.tanh(np.float32(0.7978846) * (z + np.float32(0.044715) * z**3))) / 2),
        "the slope without its cubic": of_lola(before=lambda name, z: slope(name, z) - np.float32(0.01) * z**3 * np.exp(-z * z)),
        "the bias forgotten before the slope": of_lola(bias=np.zeros_like),
        "dW from x that is not normed": of_lola(n_of=lambda n: n + np.float32(0.5)),
        "last row missing from dW": of_lola(rows=slice(None, -1)),
        "last row missing from dW in bfloat16": of_lola("bfloat16", S, rows=slice(None, -1)),
        "last block of rows missing from dW": of_lola(rows=slice(None, 32)),
        "db of the first row alone": of_lola(sum_rows=lambda dz: dz[0]),
        "db a mean over the batch": of_lola(db_scale=1 / 37),
        "last row missing from db": of_lola(sum_rows=lambda dz: total(dz[:-1])),
        "db in float16": of_lola(sum_rows=lambda dz: wide(np.cumsum(dz.astype(np.float16), axis=0, dtype=np.float16)[-1])),
        "db from dy": of_lola(sum_rows=lambda dz: total(np.roll(dz, 1, axis=1))),
        "dx by W of other columns": of_lola(W_of=lambda W: np.roll(W, 1, axis=1)),
        "dW transposed in its halves": of_lola(edited=lambda dx, dW, db: (dx, np.roll(dW, 1, axis=0), db)),
        "last column of dW missing": of_lola(edited=lambda dx, dW, db: (dx, edit(dW, np.s_[:, -1], 0), db)),
        "last row of dx missing": of_lola(edited=lambda dx, dW, db: (edit(dx, -1, 0), dW, db)),
        "dW written by one block of rows alone": of_lola(rows=slice(32, None), options={"w_layout": "nk"}),
        "dz stored, not declared": of_lola("float16", dz_of=keep),
        "dW stored after each tile of rows": Mistake(
            tiled_dW, S, ODD, "bfloat16", options={"activation": "none"}, mode="backward"),
        "db stored after each tile of rows": Mistake(
            tiled_db, S, ODD, "float16", options={"activation": "none"}, mode="backward"),
        "all of dW a part in a thousand off": of_lola(edited=lambda dx, dW, db: (dx, dW * np.float32(1.001), db)),
    },
}  # fmt: skip

CORRECT |= sparse_gradients.CORRECT
MISTAKES |= sparse_gradients.MISTAKES
