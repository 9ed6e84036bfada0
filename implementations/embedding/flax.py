"""embedding in Flax: nn.Embed over all tables at once, behind each of the hashings.

modulus     one remainder for all features.
naive       each feature's list of known values is an argument in the host's memory, which jit moves to the device in every
            call, and is compared as a whole with all ids; XLA fuses comparison and reduction.
improved    the lists stay on the device as one sorted list; one binary search for all features, unrolled, so that XLA can
            fuse its steps.
"""

import flax.linen as nn
import jax.numpy as jnp

from implementations._shared.jax import lookup
from implementations._shared.jax.autograd import in_mode
from implementations.embedding._limits import skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
BACKWARD = {"modulus": (), "improved": ()}


def prepare(case, variant, ids, tables, offsets, known=None):
    return lookup.prepared(variant, offsets, known)


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D), jitted."""

    def call(ids, tables, offsets, known=None, *prepared):
        rows = lookup.rows_of(variant, ids, tables, offsets, prepared)
        if case.mode != "forward":  # summed in float32: what JAX makes of a gather adds 16 bits in 16 bits
            return jnp.take(tables.astype(jnp.float32), rows, axis=0).astype(tables.dtype)
        embed = nn.Embed(*tables.shape, dtype=tables.dtype, param_dtype=tables.dtype)
        return embed.apply({"params": {"embedding": tables}}, rows)

    return in_mode(case, call, (1,))
