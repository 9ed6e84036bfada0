"""The training step of dlrm in PyTorch, but for how it is differentiated."""

import torch
import torch.nn.functional as F

from implementations._shared import dlrm
from implementations._shared.dlrm import LEARNING_RATE
from implementations._shared.torch import interactions, lookup
from implementations._shared.torch.dlrm import Perceptron
from implementations.dlrm_train._step import hashing, in_place


def prepare(case, variant, dense, ids, labels, *weights):
    given = dlrm.by_part(case, (dense, ids, *weights))
    return lookup.prepared(hashing(variant), given.offsets, given.known)


def loss_of(case, device):
    """(vectors (M, F, D), layers, dense, labels) → loss (): layers are the float32 W, b of both perceptrons, cast here."""
    dtype, count = getattr(torch, case.dtype), 2 * case.sizes["LAYERS"]
    perceptron, form = Perceptron(), interactions.form(case.options["interaction"], case.sizes["F"], device)

    def loss(vectors, layers, dense, labels):
        layers = [p.to(dtype) for p in layers]
        crossed = form(perceptron(dense, layers[:count]), vectors)
        logits = perceptron(crossed, layers[count:])
        return F.binary_cross_entropy_with_logits(logits[:, 0].float(), labels)

    return loss


def step(case, variant, gradients, hashings=lookup.HASHINGS):
    """A call of the contract. `gradients` of (vectors, layers, dense, labels) are (loss, dvectors, gradients of the layers)."""
    of_rows, dtype = hashings[hashing(variant)], getattr(torch, case.dtype)

    def call(dense, ids, labels, *weights):
        given = dlrm.by_part(case, (dense, ids, *weights))
        tables, layers = given.tables, (*given.bottom, *given.top)
        rows = torch.where(lookup.valid(ids), of_rows(ids, given.offsets, *given.prepared), len(tables) - 1)
        loss, dvectors, steps = gradients(F.embedding(rows, tables).to(dtype), layers, dense, labels)
        flat, subtracted = rows.flatten(), -LEARNING_RATE * dvectors.flatten(0, 1).float()
        if in_place(variant):
            tables.index_add_(0, flat, subtracted)
            for p, d in zip(layers, steps, strict=True):
                p.sub_(d, alpha=LEARNING_RATE)
            new = layers
        else:
            tables = tables.index_add(0, flat, subtracted)
            new = [p.sub(d, alpha=LEARNING_RATE) for p, d in zip(layers, steps, strict=True)]
        outputs = [loss, dvectors, tables]
        for n in range(0, len(new), 2):
            outputs += [*steps[n : n + 2], *new[n : n + 2]]
        return tuple(outputs)

    return call
