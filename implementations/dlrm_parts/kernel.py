"""dlrm_parts: the recommendation model of implementations/dlrm up to one of its parts, which tells the share of each in a step: a part
takes what its call takes beyond that of the part before. The arrays are dlrm's, all of them. The option `until`, in the model's order:

  dense        the dense perceptron → vector (M, D)
  hashing      and the table row of each id → vector, rows (M, F) int64
  embedding    and the look-up → vector, sparse (M, F, D)
  interaction  and the interaction of all vectors → (M, D + F (F + 1) / 2), or with `outer` (M, ((F + 1) D)²)

What is left to the whole model is its prediction.
"""

from functools import partial

from implementations._shared import dlrm as parts
from implementations._shared.numpy import dlrm, interactions, lookup, perceptron
from implementations._shared.numpy.dlrm import CASES, DIMENSIONS, edges, inputs, weights  # noqa: F401 (parts of the contract)

BATCH = "M"
OPTIONS = {"until": ("dense", "hashing", "embedding", "interaction"), **dlrm.OPTIONS}
ROWS = {"dense": 0, "ids": 0, "y": 0}
OUTPUTS = {"until=hashing": ("vector", "rows")}
OWN_DTYPES = {"rows": "int64"}


def _launches(of_perceptron, case):
    """Those of the perceptron and of what is behind it."""
    return of_perceptron(case.sizes["LAYERS"]) + (case.options["until"] == "interaction")


# the perceptron in one, in one for each layer, or with one more that copies its input
_OF_CUDA = tuple(partial(_launches, of) for of in (lambda layers: 1, lambda layers: layers, lambda layers: layers + 1))
LAUNCHES = {"modulus": _OF_CUDA, "improved": _OF_CUDA}


def formula(case, r, *arrays):
    """The outputs up to the part, in float64. Points: `product`, `bias` and `hidden` of the dense perceptron's layers, and `hidden` of
    its vector on the way to the interaction."""
    given, until = parts.by_part(case, arrays), case.options["until"]
    vector = perceptron.sums(parts.dense_case(case), r, given.dense, *given.bottom)[0][-1]
    if until == "dense":
        return (vector,)
    rows = r.once(lambda: lookup.rows(given.ids, given.offsets, given.known))
    if until == "hashing":
        return vector, rows
    if until == "embedding":
        return vector, given.tables[rows]
    return (interactions.formula(case.options["interaction"], r, r.round("hidden", vector), given.tables[rows]),)


def hard(case):
    """All kinds but extremes, whose sums overflow, and `large`, which shows nothing where there is no exponential; none of the tables
    where their vectors are multiplied."""
    return dict.fromkeys(("large_mean", "equal", "subnormal", "nan", "inf", "small", "zeros", "wide"), ("dense",))


def flops(case):
    """Those of the dense perceptron, and of the interaction where the call goes so far."""
    crossed = interactions.flops(case.options["interaction"], *case.size("M", "F", "D"))
    return perceptron.flops(parts.dense_case(case)) + (crossed if case.options["until"] == "interaction" else 0)


def moved_bytes(case):
    """The dense features, the dense perceptron's weights and biases and, from hashing on, ids read once; the outputs written once. Table
    rows do not count, as in dlrm."""
    M, F, D, N0 = case.size("M", "F", "D", "N0")
    written = {
        "dense": M * D,
        "hashing": M * D,
        "embedding": M * D * (F + 1),
        "interaction": M * parts.interaction_width(case),
    }
    until = case.options["until"]
    integers = {"dense": 0, "hashing": 2 * M * F}.get(until, M * F)
    floats = M * N0 + sum(perceptron.elements(parts.dense_case(case))) + written[until]
    return floats * case.itemsize + integers * 8
