"""Where the launches of dlrm_train in CUDA have their arrays, as _model.cuh says it too."""

import numpy as np

from implementations.dlrm_train import _step

MOST, THREADS = 7, 256  # layers of a model; threads of a block, as in _model.cuh
NOWHERE = -1  # of what is lent
PARAMETERS = ("float32",) * (2 * MOST)  # dtypes


def whole(n, of):
    return -(-n // of) * of


def pitches(case):
    """Elements of a row of each layer's input, and of the gradient behind it."""
    return [(whole(K, 16), whole(N, 16)) for K, N in _step.layers_of(case)[0]]


def parameters(given):
    """W and b of each layer of a call's arguments by part, and 0 for those that the model does not have."""
    own = *given.bottom, *given.top
    return own + (0,) * (2 * MOST - len(own))


def gradients(case):
    """Where each layer's dW and db begin in the array of all gradients, as whole vectors, and how many floats that has."""
    places, end = [], 0
    for K, N in _step.layers_of(case)[0]:
        places.append((end, end + whole(K * N, 4)))
        end += whole(K * N, 4) + whole(N, 4)
    return places, end


def between(case, lends=True):
    """Of the arrays between the launches: their elements in memory of their own, the largest layer, and where the gradient of its weights begins, in
    whose place are the other layers' arrays, or NOWHERE where these do not fit, or nothing `lends`."""
    layers = _step.layers_of(case)[0]
    arrays = [case.sizes["M"] * (K + N) for K, N in pitches(case)]
    weights = [K * N for K, N in layers]
    largest = weights.index(max(weights))
    if not lends or (sum(arrays) - arrays[largest]) * case.itemsize > 4 * weights[largest]:
        return sum(arrays), largest, NOWHERE
    return arrays[largest], largest, gradients(case)[0][largest][0]


def sizes(case, lends=True):
    """What kernels have of the model's sizes."""
    layers, bottom = _step.layers_of(case)
    inputs = [K for K, _ in layers] + [0] * (MOST - len(layers))
    return (
        case.sizes["M"],
        len(layers),
        *inputs,
        *(np.int32(n) for n in (bottom, *case.size("F", "D"), *between(case, lends)[1:])),
    )
