"""dlrm in Flax (_shared/jax/dlrm.py): dense, sparse and prediction are modules, the interaction a function between them.

modulus, naive, improved: the hashings of embedding's flax.
"""

import jax

from implementations._shared import dlrm
from implementations._shared.dlrm import skip  # noqa: F401 (`skip` is part of the contract)
from implementations._shared.jax import lookup
from implementations._shared.jax.dlrm import apply

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {
    "modulus": ("product", "bias", "activation", "interaction"),
    "naive": ("product", "bias", "activation", "interaction"),
    "improved": ("product", "bias", "activation", "interaction"),
}


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return lookup.prepared(variant, given.offsets, given.known)


def build(case, variant, device):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1), jitted."""
    return jax.jit(lambda *arguments: apply(case, variant, arguments))
