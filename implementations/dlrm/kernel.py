"""dlrm: the whole recommendation model, from a user's features to the probability of a click.

dense (M, N0), ids (M, F) int64 → y (M, 1), of the dtype of the weights:

  dense        a perceptron N0 → N1 → … → D, ReLU between its layers, none behind the last
  sparse       a look-up of each id in its feature's table: F vectors of D. The tables stand below one another in one array, and an
               id outside of 0 … 2³² - 1 gets that array's last row, NaN, so that its probability is NaN
  interaction  an option: `dot` or `outer` of the F + 1 vectors (implementations/interaction/kernel.py)
  prediction   a perceptron → P1 → P2 → 1 and a sigmoid

LAYERS, 1 to 4, is the number of layers of the dense perceptron; the prediction has as many, 3 at most. Widths past the last layer
mean nothing, and no array has them. Hashing is an option, as in implementations/embedding/kernel.py: `modulus`, or `lookup` in the
known values (sum V_f,), the last input then.

All weights are made here, so that every framework has the same bits: tables (sum V_f + 1, D), offsets (F + 1,) int64, bottom_W1
(N0, N1), bottom_b1 (N1,) …, top_W1 …, known.
"""

from functools import partial
from itertools import product

from implementations._shared.dlrm import layers_of_prediction
from implementations._shared.numpy import dlrm
from implementations._shared.numpy.dlrm import (  # noqa: F401 (parts of the contract)
    CASES,
    DIMENSIONS,
    OPTIONS,
    PUBLISHED,
    edges,
    flops,
    inputs,
    weights,
)

BATCH = "M"
ROWS = {"dense": 0, "ids": 0, "y": 0}


def _launches(beside, bottom, top, case):
    """`beside` those of the perceptrons, each of which is one (0), one for each layer (1), or these and one that copies its input (2)."""
    of_layers = case.sizes["LAYERS"], layers_of_prediction(case)
    return beside + sum((1, n, n + 1)[kind] for kind, n in zip((bottom, top), of_layers, strict=True))


def _any(beside):
    return tuple(partial(_launches, beside, bottom, top) for bottom, top in product((0, 1, 2), (0, 1)))


# with interaction=dot; modulus_split and improved_split with three layers or more. naive copies the known values first, as published, and looks up apart
LAUNCHES = {"modulus": _any(1), "improved": _any(1), "naive": _any(3), "modulus_split": 7, "improved_split": 7}


def formula(case, r, *arrays):
    """(y,) in float64. Points: `product`, `bias` and `hidden` of the perceptrons' layers, `hidden` of the dense vector too,
    `interaction`, and the sigmoid's `activation`."""
    return (dlrm.probability(case, r, *arrays),)


def hard(case):
    """All kinds but extremes, whose sums overflow. Infinities, large means and values of the dense features alone: their dots would not
    fit float16 in the tables."""
    of_dense = dict.fromkeys(("large_mean", "nan", "inf", "large", "small", "wide"), ("dense",))
    return of_dense | dict.fromkeys(("equal", "subnormal", "zeros"), ("dense", "tables"))


def moved_bytes(case):
    """dense, ids, the perceptrons' weights and biases read once, y written once. Table rows do not count: ids repeat, and how often is
    a matter of the data. Nor does anything between the parts, which a fused program need not store; the weights that multiply outer
    products do."""
    M, F, N0 = case.size("M", "F", "N0")
    return M * F * 8 + (M * N0 + dlrm.layer_elements(case) + M) * case.itemsize
