"""What the Torch implementations of embedding share: hashings, and the known values as `naive` and `improved` want them."""

import torch

FEATURE_BIT = 33  # a search key is feature << 33 | value: values have 32 bits, and 2³² sorts behind them


def prepare(case, variant, ids, tables, offsets, known=None):
    """What torch_eager and torch_compile prepare. naive: each feature's list in the host's memory, F tensors. improved: the
    sorted list and its table rows."""
    if variant == "naive":
        return tuple(known.cpu().split((offsets[1:] - offsets[:-1]).tolist()))
    return search_list(offsets, known) if variant == "improved" else ()


def search_list(offsets, known):
    """(keys, rows), both (sum V_f,) int64, for `improved`: all features' known values in one ascending list, and the table row
    of each. Equal values stay in their order. The entry of unknown ids is the last of its feature, so that a search always ends
    within the feature."""
    feature = torch.searchsorted(offsets, torch.arange(len(known), device=known.device), right=True) - 1
    keys, rows = torch.sort((feature << FEATURE_BIT) + torch.where(known < 0, 2**32, known), stable=True)
    return keys, rows


def narrow_search_list(offsets, known):
    """The same in 32 bits, for kernels that search within one feature: keys (sum V_f,) int32, value - 2³¹ in ascending order,
    and positions (sum V_f,) int32 within the feature. The last entry of each feature is not to be searched."""
    keys, rows = search_list(offsets, known)
    values = keys & ((1 << FEATURE_BIT) - 1)
    first = offsets[keys >> FEATURE_BIT]
    return (values.clamp(max=2**32 - 1) - 2**31).to(torch.int32), (rows - first).to(torch.int32)


def valid(ids):
    """Which ids are 0 … 2³² - 1."""
    return (ids >> 32) == 0


def modulus(ids, offsets):
    """Table rows (M, F)."""
    begin = offsets[:-1]
    return (ids + 1) % (offsets[1:] - begin) + begin


def improved(ids, offsets, keys, rows):
    """Table rows (M, F). An id out of range is searched as 0, so that the place found always exists."""
    feature = torch.arange(ids.shape[1], device=ids.device)
    wanted = (feature << FEATURE_BIT) + torch.where(valid(ids), ids, 0)
    place = torch.searchsorted(keys, wanted)
    return torch.where(keys[place] == wanted, rows[place], offsets[1:] - 1)
