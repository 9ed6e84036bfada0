"""DLRM's feature interaction and its gradients in float64 NumPy, for kernel.py files; `form` is dot or outer."""

import numpy as np


def columns(form, F, D):
    """How wide a row of the interaction is."""
    return D + F * (F + 1) // 2 if form == "dot" else ((F + 1) * D) ** 2


def formula(form, r, dense, sparse):
    """dense (M, D), sparse (M, F, D) → (M, columns). A single product is rounded once, in the output."""
    stack = np.concatenate([dense[:, None, :], sparse], axis=1)
    if form == "outer":
        x = stack.reshape(len(dense), -1)
        return (x[:, :, None] * x[:, None, :]).reshape(len(dense), -1)
    products = r.dot(stack, stack.swapaxes(1, 2))
    i, j = np.tril_indices(stack.shape[1], -1)
    return np.concatenate([dense, products[:, i, j]], axis=1)


def gradient(form, r, dense, sparse, dy):
    """(ddense, dsparse) in float64. dot: with dP the gradients of the products in the lower triangle, (dP + dPᵀ) @ stack, and dense's own
    columns; outer: the same of one vector. Points: `left` and `right`, the two products, and `stack`, their sum; `terms` of outer's, which
    no library multiplies as matrices."""
    M, (F, D) = len(dense), sparse.shape[1:]
    stack = np.concatenate([dense[:, None, :], sparse], axis=1)
    if form == "outer":
        x, dP = stack.reshape(M, 1, -1), dy.reshape(M, (F + 1) * D, (F + 1) * D)
        sums = (r.sum(r.round("terms", d * x), axis=2) for d in (dP, dP.swapaxes(1, 2)))
    else:
        i, j = np.tril_indices(F + 1, -1)
        place = np.zeros((F + 1, F + 1), int)
        place[i, j] = D + np.arange(len(i))
        x, dP = stack, np.where(place > 0, dy[:, place.reshape(-1)].reshape(M, F + 1, F + 1), 0.0)
        sums = (r.dot(d, x) for d in (dP, dP.swapaxes(1, 2)))
    left, right = (r.round(point, total) for point, total in zip(("left", "right"), sums, strict=True))
    through = r.round("stack", left + right).reshape(M, F + 1, D)
    own = dy[:, :D] if form == "dot" else 0.0
    return r.compute(through[:, 0] + own), r.compute(through[:, 1:])


def flops(form, M, F, D):
    """Only the products that are asked for: dot 2 D of each of the F (F + 1) / 2 pairs, outer one of each output."""
    return M * F * (F + 1) * D if form == "dot" else M * ((F + 1) * D) ** 2
