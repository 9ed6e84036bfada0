"""dlrm_train: one training step of the recommendation model (implementations/dlrm/kernel.py): the loss of a batch, the gradients of
all parameters, and the parameters after a step of gradient descent.

dense (M, N0), ids (M, F) int64, labels (M,) of 0 or 1, and dlrm's weights

  loss          (), the mean over the batch of the binary cross-entropy of labels and probabilities
  dvectors      (M, F, D), the gradient by the vector that each id looked up. It is the gradient by the tables, in the sparse form: row
                `dvectors[m, f]` belongs to the table row of ids[m, f], and table rows that are looked up twice get the sum
  new_tables    tables - 0.1 × their gradient
  dW, db, new_W, new_b  of each layer, those of the dense perceptron first: its gradients, and the layer after the step

Parameters are kept in float32 in every dtype, because an update is far below the spacing of a 16-bit parameter. What a 16-bit step multiplies is
cast (point `cast`); its gradients are float32 again, and only `dvectors` has the dtype of the case.

The loss comes from the logit z, as max(z, 0) - y z + log(1 + exp(-|z|)), in float32: the logarithm of a probability that was rounded
to 1 would be infinite. Gradients of ReLU are 0 where its argument is 0.
"""

import numpy as np

from implementations._shared import dlrm as parts
from implementations._shared.dlrm import LEARNING_RATE
from implementations._shared.numpy import dlrm, interactions, lookup, perceptron
from implementations._shared.numpy.dlrm import CASES, DIMENSIONS, OPTIONS, PUBLISHED, weights  # noqa: F401 (the contract's)
from implementations._shared.numpy.edges import ids_at

BATCH = "M"
LAYERS = 7  # of both perceptrons, at most
_OF_LAYER = ("dW", "db", "new_W", "new_b")
OUTPUTS = ("loss", "dvectors", "new_tables", *(f"{name}{n}" for n in range(1, LAYERS + 1) for name in _OF_LAYER))
_PARAMETERS = ("tables", *(f"{part}_{p}{n}" for part in ("bottom", "top") for n in range(1, 5) for p in "Wb"))
OWN_DTYPES = dict.fromkeys(("labels", *_PARAMETERS, *(name for name in OUTPUTS if name != "dvectors")), "float32")
ROWS = {"dense": 0, "ids": 0, "labels": 0, "dvectors": 0}


def _launches(case):
    """A launch for each layer forward and one backward, those between the perceptrons, two updates, and the tables'."""
    return 2 * (case.sizes["LAYERS"] + parts.layers_of_prediction(case)) + 3


def _launches_of_products(case):
    """The same where one launch updates all."""
    return _launches(case) - 1


LAUNCHES = {
    "modulus_in_place": _launches,
    "modulus_two_launches": (2, _launches_of_products), "improved_two_launches": (2, _launches_of_products),
}  # fmt: skip


def inputs(case, rng):
    """Those of dlrm, and labels (M,): one in four is a click."""
    return dlrm.inputs(case, rng) | {"labels": (rng.random(case.sizes["M"]) < 0.25).astype(np.float32)}


def edges(case, kind, rng):
    """The inputs with ids at an edge of what they may be, none past it, which would make the loss and all gradients NaN, or all over the tables."""
    return inputs(case, rng) | {"ids": ids_at(case, kind, rng, past=False)}


def hard(case):
    """Kinds whose gradients are defined, of the dense features. Sums of large means overflow; subnormal ones make all samples alike, which then cross the
    steps of ReLU together: in 16 bits no budget says so. Left out too: `large`, by which answers are sure. Their gradients are below
    what is left where a program has them as a difference of 1, as torch.compile does, or subnormal, which XLA flushes on CPUs."""
    kinds = ("equal", "zeros", *(("subnormal", "small") if case.dtype == "float32" else ()))
    return dict.fromkeys(kinds, ("dense",))


def formula(case, r, dense, ids, labels, *arrays):
    """(loss, dvectors, new_tables, dW, db, new_W, new_b of each layer) in float64.

    Points: those of dlrm; `cast` of parameters; `dz` and `dhidden`, the gradients before and after each product; `dinteraction`, and the
    interaction's `terms`, `left`, `right`, `stack`; `dweights` of programs whose products store gradients in the dtype.
    """
    given = parts.by_part(case, (dense, ids, *arrays))
    bottom, top = (tuple(r.narrow("cast", a) for a in layers) for layers in (given.bottom, given.top))
    known = () if given.known is None else (given.known,)
    model = dlrm.forward(case, r, dense, ids, given.tables, given.offsets, *bottom, *top, *known)
    loss, dlogit = _loss(r, model.top[0][-1], labels[:, None])
    dcrossed, *dtop = perceptron.gradients(parts.prediction_case(case, "none"), r, *model.top, top, dlogit)
    crossed = r.round("dinteraction", dcrossed)
    ddense, dvectors = interactions.gradient(case.options["interaction"], r, model.dense, model.sparse, crossed)
    _, *dbottom = perceptron.gradients(parts.dense_case(case), r, *model.bottom, bottom, r.round("dhidden", ddense))
    dvectors = r.round("dvectors", dvectors)
    outputs = [loss, dvectors, _new_tables(r, given.tables, model.rows, dvectors)]
    gradients = [r.round("dweights", gradient) for gradient in (*dbottom, *dtop)]
    new = [_stepped(r, old, d) for old, d in zip((*given.bottom, *given.top), gradients, strict=True)]
    for n in range(0, len(new), 2):
        outputs += [*gradients[n : n + 2], *new[n : n + 2]]
    return tuple(outputs)


def _loss(r, logit, y):
    """The mean of the cross-entropy, (), and its gradient by the logit (M, 1)."""
    rest = r.function(np.log1p(r.function(np.exp(-np.abs(logit)))))
    each = r.compute(r.compute(np.maximum(logit, 0.0) - logit * y) + rest)
    small = r.function(np.exp(-np.abs(logit)))  # never beyond 1
    probability = r.function(np.where(logit >= 0, 1.0, small) / r.compute(1 + small))
    return r.compute(r.sum(each[:, 0], axis=0) / len(y)), r.round("dz", r.compute(probability - y) / len(y))


def _stepped(r, old, gradient):
    return r.compute(old - r.compute(LEARNING_RATE * gradient))


def _new_tables(r, tables, rows, dvectors):
    """The tables after the step, each row with all that is subtracted from it in one sum; one that was not looked up stays, bit for bit."""

    def places():
        flat = rows.reshape(-1)
        touched = np.flatnonzero(times := np.bincount(flat))
        ends, itself = np.cumsum(times[touched]), np.arange(len(touched))
        # each row before its steps
        order = np.insert(len(touched) + lookup.in_order(flat), ends - times[touched], itself)
        return touched, order, np.concatenate([[0], ends + itself + 1])

    touched, order, starts = r.once(places)
    steps = r.compute(-LEARNING_RATE * dvectors).reshape(-1, tables.shape[1])
    sums = r.segments("accumulated", np.concatenate([tables[touched], steps], axis=0)[order], starts)
    place = np.arange(len(tables))
    place[touched] = len(tables) + np.arange(len(touched))
    return np.concatenate([tables, sums], axis=0)[place]


def flops(case):
    """Three times the forward pass, without the gradient by the dense features, and 2 for each parameter of a layer and each value that
    was looked up: the step."""
    M, F, D, N0 = case.size("M", "F", "D", "N0")
    first = parts.dense_case(case).sizes["N1"]
    return 3 * dlrm.flops(case) - 2 * M * N0 * first + 2 * (dlrm.layer_elements(case) + M * F * D)


def moved_bytes(case):
    """dense, ids and labels read once; each layer read, its gradient and the new one written, in float32; dvectors and the loss written. Tables do not count:
    a step in place touches the rows that were looked up alone, and how many these are is a matter of the data."""
    M, F, D, N0 = case.size("M", "F", "D", "N0")
    return M * (F * 8 + 4) + M * (N0 + F * D) * case.itemsize + 12 * dlrm.layer_elements(case) + 4
