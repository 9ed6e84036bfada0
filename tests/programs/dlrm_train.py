"""dlrm_train: one step of gradient descent on the recommendation model, in float32 parameters."""

from functools import partial

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import edit, first_again, is_16, is_32, keep, library, relu, same, store, wide

RATE = np.float32(0.1)


def total(a):
    return a.sum(axis=0, dtype=np.float32)


def rows_of(ids, offsets):
    return offsets[:-1] + (ids + 1) % (offsets[1:] - offsets[:-1])


def crossed(case, dense, vectors):
    stack = np.concatenate([dense[:, None], vectors], axis=1)
    if case.options["interaction"] == "outer":
        x = stack.reshape(len(stack), -1)
        return (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    i, j = np.tril_indices(stack.shape[1], -1)
    return np.concatenate([dense, (stack @ stack.swapaxes(1, 2))[:, i, j]], axis=1)


def uncrossed(case, dense, vectors, d, both=True):
    """The gradients by dense and vectors; without `both` each product is one of its first factor alone."""
    stack = np.concatenate([dense[:, None], vectors], axis=1)
    M, count, D = stack.shape
    outer = case.options["interaction"] == "outer"
    if outer:
        x, pairs = stack.reshape(M, 1, -1), d.reshape(M, count * D, count * D)
    else:
        i, j = np.tril_indices(count, -1)
        x, pairs = stack, np.zeros((M, count, count), np.float32)
        pairs[:, i, j] = d[:, D:]
    by_pairs = pairs + pairs.swapaxes(1, 2) if both else pairs
    made = (by_pairs @ (x.swapaxes(1, 2) if outer else x)).reshape(M, count, D)
    return made[:, 0] + (0 if outer else d[:, :D]), made[:, 1:]


def added(tables, rows, d):
    """Every lookup's step subtracted, one after the other."""
    new = tables.copy()
    np.subtract.at(new, rows.reshape(-1), (RATE * d).reshape(-1, d.shape[-1]))
    return new


def summed(tables, rows, d):
    """The steps of a row summed first."""
    gradient = np.zeros_like(tables[:-1])
    np.add.at(gradient, rows.reshape(-1), d.reshape(-1, d.shape[-1]))
    return np.concatenate([tables[:-1] - RATE * gradient, tables[-1:]])


def step(
    case, dense, ids, labels, tables, offsets, *layers, held=None, cast=None, mask=lambda z: z > 0, of_z=lambda z, y: 1 / (1 + np.exp(-z)) - y,
    mean=lambda a, M: a / np.float32(M), gradient_mean=None, table=added, rate=RATE, edited=lambda n, dW, db: (dW, db), loss=None,
    both=True, through=same, own=lambda d: d,
):  # fmt: skip
    """`held` stores what goes from one operator to the next, `cast` the parameters; `edited` changes a layer's gradients."""
    held, M = held or same, len(dense)
    weights = [(cast or held)(p) for p in layers]
    first = 2 * case.sizes["LAYERS"]

    def forward(x, own):
        below, sums = [x], []
        for n in range(0, len(own), 2):
            sums.append(held(library(below[-1], own[n]) + own[n + 1]))
            below.append(relu(sums[-1]))
        return below, sums

    def backward(below, sums, own, d):
        made = []
        for n in reversed(range(0, len(own), 2)):
            d = d if n + 2 == len(own) else d * mask(sums[n // 2]) if mask else d
            made = [library(below[n // 2].T, d), total(d), *made]
            d = held(library(d, own[n].T))
        return d, made

    bottom, top = weights[:first], weights[first:]
    below, sums = forward(wide(dense), bottom)
    rows = rows_of(ids, offsets)
    vectors = (cast or held)(tables[rows])
    product = held(crossed(case, sums[-1], vectors))
    above, tops = forward(product, top)
    z = tops[-1][:, 0]
    each = np.maximum(z, 0) - z * labels + np.log1p(np.exp(-np.abs(z))) if loss is None else loss(z, labels)
    d = held((gradient_mean or mean)(of_z(z, labels)[:, None], M))
    d, of_top = backward(above, tops, top, d)
    ddense, dvectors = uncrossed(case, sums[-1], vectors, d, both)
    ddense, dvectors = held(ddense), held(own(dvectors))
    _, of_bottom = backward(below, sums, bottom, through(ddense))
    gradients = [held(g) for g in (*of_bottom, *of_top)]
    pairs = [edited(n, *gradients[2 * n : 2 * n + 2]) for n in range(len(gradients) // 2)]
    outputs = [np.float32(mean(each.sum(dtype=np.float32), M)), store(case, dvectors), table(tables, rows, dvectors)]
    for n, (dW, db) in enumerate(pairs):
        outputs += [dW, db, layers[2 * n] - rate * dW, layers[2 * n + 1] - rate * db]
    return tuple(wide(o) if number != 1 else o for number, o in enumerate(outputs))


def with_(**hooks):
    return lambda case, *arrays: step(case, *arrays, **hooks)


def stored(case, *arrays, **hooks):
    """What goes from one operator to the next in 16 bits."""
    return step(case, *arrays, held=partial(keep, case), **hooks)


def modulus(case):
    return case.options["hashing"] == "modulus"


POINTS = (
    "cast", "product", "bias", "hidden", "interaction", "dz", "dhidden", "dinteraction", "stack", "dvectors", "dweights"
)  # fmt: skip
CORRECT = {
    "one by one": Program(step, (), lambda case: modulus(case) and is_32(case)),
    "tables summed first": Program(with_(table=summed), (), lambda case: modulus(case) and is_32(case)),
    "stored": Program(stored, POINTS, lambda case: modulus(case) and is_16(case)),
}
LARGEST = {"M": 40, "F": 6, "V": 60, "D": 9, "LAYERS": 4, "N0": 14, "N1": 20, "N2": 16, "N3": 9, "P1": 20, "P2": 12}

ODD = {
    "M": 37, "F": 5, "V": 211, "D": 7, "LAYERS": 3, "N0": 13, "N1": 67, "N2": 33, "N3": 1, "P1": 41, "P2": 19,
}  # fmt: skip


def written(tables, rows, d):
    """Of ids that come twice the last one's step alone."""
    new = tables.copy()
    new[rows.reshape(-1)] -= (RATE * d).reshape(-1, d.shape[-1])
    return new


def first_of(tables, rows, d):
    """The step of a row divided by how often it came."""
    counts = np.bincount(rows.reshape(-1), minlength=len(tables))
    return added(tables, rows, d / counts[rows][..., None].astype(np.float32))


def stale(number):
    """The new parameters of an output are the old ones."""

    def run(case, *arrays):
        outputs = list(step(case, *arrays))
        outputs[number] = wide(arrays[3 if number == 2 else 5 + (number - 3) // 4 * 2 + (number - 3) % 4 - 2])
        return tuple(outputs)

    return run


def changed(number, change):
    def run(case, *arrays):
        outputs = list(step(case, *arrays))
        outputs[number] = change(outputs[number])
        return tuple(outputs)

    return run


def layer(number, change):
    return with_(edited=lambda n, dW, db: change(dW, db) if n == number else (dW, db))


P, S = "one by one", "stored"
OUTER = {"interaction": "outer"}
MISTAKES = {
    "the step uphill": Mistake(with_(rate=-RATE), P, ODD),
    "the tables uphill": Mistake(with_(table=lambda t, r, d: added(t, r, -d)), P, ODD),
    "a tenth of the learning rate": Mistake(with_(rate=RATE / 10), P, ODD),
    "the sum of the losses": Mistake(with_(mean=lambda a, M: a), P, ODD),
    "the gradient of the sum, the mean as the loss": Mistake(with_(gradient_mean=lambda a, M: a), P, ODD),
    "the loss of the sum, the gradient of the mean": Mistake(changed(0, lambda loss: np.float32(37 * loss)), P, ODD),
    "the mean over one sample less": Mistake(with_(mean=lambda a, M: a / np.float32(M - 1)), P, ODD),
    "ids that come twice written, not added": Mistake(with_(table=written), P, ODD),
    "ids that come twice written in bfloat16": Mistake(partial(stored, table=written), S, ODD, "bfloat16"),
    "ids that come twice averaged": Mistake(with_(table=first_of), P, ODD),
    "the mask of ReLU forgotten": Mistake(with_(mask=None), P, ODD),
    "the mask of ReLU forgotten in bfloat16": Mistake(partial(stored, mask=None), S, ODD, "bfloat16"),
    "the mask of ReLU the other way round": Mistake(with_(mask=lambda z: z < 0), P, ODD),
    "the gradient of the first layer missing": Mistake(layer(0, lambda dW, db: (0 * dW, 0 * db)), P, ODD),
    "the gradient of the last layer missing": Mistake(layer(5, lambda dW, db: (0 * dW, 0 * db)), P, ODD),
    "the gradient of a bias missing": Mistake(layer(2, lambda dW, db: (dW, 0 * db)), P, ODD),
    "the gradient of a bias of the first sample alone": Mistake(layer(4, lambda dW, db: (dW, db / 37)), P, ODD),
    "the last row of a gradient missing": Mistake(layer(1, lambda dW, db: (edit(dW, -1, 0), db)), P, ODD),
    "the last row of a gradient missing in bfloat16": Mistake(
        partial(stored, edited=lambda n, dW, db: (edit(dW, -1, 0), db) if n == 1 else (dW, db)), S, ODD, "bfloat16"),
    "nothing behind the interaction for the dense layers": Mistake(with_(through=lambda d: 0 * d), P, ODD),
    "each product by its first factor alone": Mistake(with_(both=False), P, ODD),
    "each outer product by its first factor alone": Mistake(with_(both=False), P, ODD, options=OUTER),
    "no label in the gradient": Mistake(with_(of_z=lambda z, y: 1 / (1 + np.exp(-z))), P, ODD),
    "labels the other way round": Mistake(with_(of_z=lambda z, y: 1 / (1 + np.exp(-z)) - (1 - y)), P, ODD),
    "the square of the error": Mistake(with_(loss=lambda z, y: (1 / (1 + np.exp(-z)) - y) ** 2), P, ODD),
    "the loss without labels": Mistake(with_(loss=lambda z, y: np.log1p(np.exp(z))), P, ODD),
    "the tables as they were": Mistake(stale(2), P, ODD),
    "a layer as it was": Mistake(stale(5), P, ODD),
    "a bias as it was": Mistake(stale(6), P, ODD),
    "the last table row changed": Mistake(changed(2, lambda t: edit(t, -2, t[-2] + np.float32(1e-3))), P, ODD),
    "the vector of the last feature without a gradient": Mistake(changed(1, lambda d: edit(d, np.s_[:, -1], 0)), P, ODD),
    "gradients of the sample before": Mistake(changed(1, lambda d: np.roll(d, 1, axis=0)), P, ODD),
    "first output again": Mistake(first_again(step), P, ODD, calls=2),
    "parameters in bfloat16": Mistake(
        changed(5, lambda W: wide(W.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if W.dtype.kind == "u"
                else (W.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)), P, ODD),
}  # fmt: skip
