"""The recommendation model's arrays and formula in NumPy, for kernel.py files; docstring of implementations/dlrm/kernel.py."""

from typing import Any, NamedTuple

import numpy as np

from implementations._shared import dlrm
from implementations._shared.numpy import interactions, lookup, perceptron
from implementations._shared.numpy.edges import ids_at
from implementations._shared.numpy.formulas import activate

DIMENSIONS = ("M", "F", "V", "D", "LAYERS", "N0", "N1", "N2", "N3", "P1", "P2")
OPTIONS = {"interaction": ("dot", "outer"), "hashing": ("modulus", "lookup")}


def sizes(M, V, D, bottom, prediction, F=26):
    """The sizes of a case: `bottom` are the widths before D, `prediction` those before 1."""
    N0, N1, N2, N3 = (*bottom, 1, 1, 1)[:4]
    P1, P2 = (*prediction, 1, 1)[:2]
    return {
        "M": M, "F": F, "V": V, "D": D, "LAYERS": len(bottom), "N0": N0, "N1": N1, "N2": N2, "N3": N3, "P1": P1, "P2": P2,
    }  # fmt: skip


CASES = {
    "main": sizes(128, 100_000, 16, (13, 512, 256, 64), (512, 256)),
    "small": sizes(128, 20_000, 16, (13, 32), (16,)),
    "large": sizes(
        65536, 100_000, 128, (13, 512, 256, 64), (512, 256)
    ),  # dot alone: outer would write 1.4 TB in 16 bits
    "one": sizes(1, 1, 1, (1,), (), F=1),
    "odd": sizes(37, 211, 7, (13, 67, 33), (41, 19), F=5),  # no tile divides it
    "odd_main": sizes(13, 97, 9, (13, 40, 24, 20), (36, 20)),  # as many features as Criteo has
    "many_features": sizes(2, 9, 5, (13, 32), (16,), F=37),  # more vectors than one tile has
    "long_rows": sizes(3, 67, 133, (5, 9), (7,), F=2),
    "one_layer": sizes(5, 11, 6, (9,), (), F=3),
    "wide_layers": sizes(9, 11, 6, (13, 190, 180), (190, 180), F=3),  # more weights than one program should stream
}
PUBLISHED = (
    {"case": "small", "options": {"interaction": "outer"}},
    {"case": "main", "options": {"interaction": "outer"}},
    {"case": "main"},
    {"case": "large"},
)


def inputs(case, rng):
    """dense (M, N0): standard normal; ids (M, F): long-tailed, some unknown, some at the edges of 32 bits."""
    return {"dense": rng.standard_normal(case.size("M", "N0"), dtype=np.float32), "ids": lookup.draw(case, rng)}


def edges(case, kind, rng):
    """The inputs with ids at an edge of what they may be, and past it, which makes a sample NaN."""
    return inputs(case, rng) | {"ids": ids_at(case, kind, rng)}


def weights(case, rng):
    """tables (sum V_f + 1, D) and offsets (F + 1,), the perceptrons' bottom_W1, bottom_b1, … and top_W1, top_b1, …, with
    hashing=lookup also known (sum V_f,).

    The tables have the deviation D^-1/4: a dot of two rows is near 1, as the outputs of all layers are.
    """
    found = lookup.weights(case, rng)
    found["tables"] *= np.float32(case.sizes["D"] ** -0.25)
    arrays = {"tables": found.pop("tables"), "offsets": found.pop("offsets")}
    for name, part in (("bottom", dlrm.dense_case(case)), ("top", dlrm.prediction_case(case))):
        arrays |= {f"{name}_{n}": array for n, array in perceptron.weights(part, rng).items()}
    return arrays | found


class Forward(NamedTuple):
    """What the model makes on its way: of each perceptron the sums of each layer and its input (perceptron.sums), the table rows of
    all ids and their vectors. The logit is top[0][-1], (M, 1)."""

    bottom: tuple[list[Any], list[Any]]
    dense: Any
    rows: Any
    sparse: Any
    top: tuple[list[Any], list[Any]]


def forward(case, r, *arguments):
    """The model up to its logit. Points: those of the perceptrons; `hidden` also of the dense vector, `interaction` of the products,
    where they are stored, and `cast` of looked-up vectors, where the tables have another dtype than the case."""
    given = dlrm.by_part(case, arguments)
    bottom = perceptron.sums(dlrm.dense_case(case), r, given.dense, *given.bottom)
    dense = r.round("hidden", bottom[0][-1])
    rows = r.once(lambda: lookup.rows(given.ids, given.offsets, given.known))
    sparse = r.narrow("cast", given.tables[rows])
    crossed = r.round("interaction", interactions.formula(case.options["interaction"], r, dense, sparse))
    top = perceptron.sums(dlrm.prediction_case(case), r, crossed, *given.top)
    return Forward(bottom, dense, rows, sparse, top)


def probability(case, r, *arguments):
    """(M, 1): the sigmoid of the logit."""
    return activate("sigmoid", forward(case, r, *arguments).top[0][-1], r)


def flops(case):
    """Those of the perceptrons and of the interaction, by their kernels' rules."""
    crossed = interactions.flops(case.options["interaction"], *case.size("M", "F", "D"))
    return perceptron.flops(dlrm.dense_case(case)) + perceptron.flops(dlrm.prediction_case(case)) + crossed


def layer_elements(case):
    """Elements of all weights and biases of the perceptrons."""
    return sum(sum(perceptron.elements(part(case))) for part in (dlrm.dense_case, dlrm.prediction_case))
