"""embedding in Flax: nn.Embed over all tables at once, behind each of the hashings.

modulus     one remainder for all features.
naive       each feature's list of known values is an argument in the host's memory, which jit moves to the device in every
            call, and is compared as a whole with all ids; XLA fuses comparison and reduction.
improved    the lists stay on the device as one sorted list; one binary search for all features, unrolled, so that XLA can
            fuse its steps.
"""

import flax.linen as nn
import jax.numpy as jnp

from implementations._shared.jax.autograd import in_mode
from implementations.embedding._jax import FEATURE_BIT, host_lists, search_list
from implementations.embedding._limits import skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
BACKWARD = {"modulus": (), "improved": ()}


def prepare(case, variant, ids, tables, offsets, known=None):
    """naive: the feature's lists in the host's memory, F arrays. improved: the sorted list and its table rows."""
    if variant == "naive":
        return host_lists(offsets, known)
    return search_list(offsets, known) if variant == "improved" else ()


def modulus(ids, offsets):
    """Table rows (M, F)."""
    begin = offsets[:-1]
    return (ids + 1) % (offsets[1:] - begin) + begin


def naive(ids, offsets, *lists):
    """Table rows (M, F): the least position that has the id, or else the list's last."""
    positions = []
    for f, values in enumerate(lists):
        last = len(values) - 1
        same = ids[:, f, None] == values[None, :]
        positions.append(jnp.where(same, jnp.arange(last + 1), last).min(axis=1))
    return jnp.stack(positions, axis=1) + offsets[:-1]


def improved(ids, offsets, keys, rows):
    """Table rows (M, F). An id out of range is searched as 0, so that the place found always exists."""
    wanted = (jnp.arange(ids.shape[1]) << FEATURE_BIT) + jnp.where(ids >> 32 == 0, ids, 0)
    place = jnp.searchsorted(keys, wanted, method="scan_unrolled")
    return jnp.where(keys[place] == wanted, rows[place], offsets[1:] - 1)


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D), jitted."""
    hashing = {"modulus": modulus, "naive": naive, "improved": improved}[variant]

    def call(ids, tables, offsets, known=None, *prepared):
        rows = hashing(ids, offsets, *prepared)
        rows = jnp.where(ids >> 32 == 0, rows, len(tables) - 1)
        if case.mode != "forward":  # summed in float32: what JAX makes of a gather adds 16 bits in 16 bits
            return jnp.take(tables.astype(jnp.float32), rows, axis=0).astype(tables.dtype)
        embed = nn.Embed(*tables.shape, dtype=tables.dtype, param_dtype=tables.dtype)
        return embed.apply({"params": {"embedding": tables}}, rows)

    return in_mode(case, call, (1,))
