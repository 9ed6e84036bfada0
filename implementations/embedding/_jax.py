"""What the JAX implementations of embedding share: the known values as `naive` and `improved` want them."""

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
