"""Hashed look-ups in JAX: the hashings, and the known values as `naive` and `improved` want them."""

import jax.numpy as jnp
import numpy as np

FEATURE_BIT = 33  # a search key is feature << 33 | value: values have 32 bits, and 2³² sorts behind them


def host_lists(offsets, known):
    """The known values of each feature in the host's memory, F NumPy arrays, for `naive`."""
    return tuple(np.split(np.asarray(known), np.asarray(offsets)[1:-1]))


def search_list(offsets, known):
    """(keys, rows), both (sum V_f,) int64, for `improved`: all features' known values in one ascending list, and the table row
    of each. Equal values stay in their order. The entry of unknown ids is the last of its feature, so that a search always ends
    within the feature."""
    feature = jnp.searchsorted(offsets, jnp.arange(len(known)), side="right").astype(jnp.int64) - 1  # it returns int32
    keys = (feature << FEATURE_BIT) + jnp.where(known < 0, 2**32, known)
    rows = jnp.argsort(keys, stable=True)
    return keys[rows], rows


def narrow_search_list(offsets, known):
    """The same in 32 bits, for kernels that search within one feature: keys (sum V_f,) int32, value - 2³¹ in ascending order,
    and positions (sum V_f,) int32 within the feature. The last entry of each feature is not to be searched."""
    keys, rows = search_list(offsets, known)
    values = keys & ((1 << FEATURE_BIT) - 1)
    first = offsets[keys >> FEATURE_BIT]
    return (jnp.minimum(values, 2**32 - 1) - 2**31).astype(jnp.int32), (rows - first).astype(jnp.int32)


def prepared(variant, offsets, known=None):
    """What the functions of a variant take of the known values. naive: the features' lists in the host's memory, F arrays. improved: the
    sorted list and its table rows."""
    if variant == "naive":
        return host_lists(offsets, known)
    return search_list(offsets, known) if variant == "improved" else ()


def prepared_for_kernels(variant, offsets, known=None):
    """The same for kernels. naive: the known values in the host's memory, which jit moves to the device in every call. improved: the
    sorted values and their positions."""
    if variant == "naive":
        return (np.asarray(known),)
    return narrow_search_list(offsets, known) if variant == "improved" else ()


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


HASHINGS = {"modulus": modulus, "naive": naive, "improved": improved}  # variant → table rows, before invalid ids


def rows_of(variant, ids, tables, offsets, prepared):
    """The table rows (M, F) of the ids; of one out of range the tables' last."""
    rows = HASHINGS[variant](ids, offsets, *prepared)
    return jnp.where(ids >> 32 == 0, rows, len(tables) - 1)
