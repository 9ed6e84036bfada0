"""Hashed look-ups in Torch: the hashings, and the known values as `naive` and `improved` want them."""

import torch
import torch.nn.functional as F

FEATURE_BIT = 33  # a search key is feature << 33 | value: values have 32 bits, and 2³² sorts behind them


def prepared(variant, offsets, known=None):
    """What the operators of a variant take of the known values. naive: each feature's list in the host's memory, F tensors. improved:
    the sorted list and its table rows."""
    if variant == "naive":
        return tuple(known.cpu().split((offsets[1:] - offsets[:-1]).tolist()))
    return search_list(offsets, known) if variant == "improved" else ()


def prepared_for_kernels(variant, offsets, known=None):
    """The same for kernels. naive: the known values in the host's memory. improved: the sorted values and their positions."""
    if variant == "naive":
        return (known.cpu(),)
    return narrow_search_list(offsets, known) if variant == "improved" else ()


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


def naive(ids, offsets, *lists):
    """Table rows (M, F). The list's last entry stands for all unknown ids, so there every comparison is true; of several
    that are true, argmax takes the first."""
    positions = []
    for f, host_list in enumerate(lists):
        same = ids[:, f, None] == host_list.to(ids.device)
        same[:, -1] = True
        positions.append(same.view(torch.uint8).argmax(dim=1))
    return torch.stack(positions, dim=1) + offsets[:-1]


def modulus_of_sizes(ids, offsets):
    """Table rows (M, F). Of the lanes behind a vector's end, which have no size, Inductor's code for CPUs takes the remainder too: no size is 0."""
    begin = offsets[:-1]
    return (ids + 1) % (offsets[1:] - begin).clamp(min=1) + begin


def naive_reduced(ids, offsets, *lists):
    """Table rows (M, F): the least position that has the id, or else the list's last: a reduction, which Inductor does without
    holding the comparisons."""
    positions = []
    for f, host_list in enumerate(lists):
        values, last = host_list.to(ids.device), len(host_list) - 1
        same = ids[:, f, None] == values[None, :]
        positions.append(torch.where(same, torch.arange(last + 1, device=ids.device), last).amin(dim=1))
    return torch.stack(positions, dim=1) + offsets[:-1]


HASHINGS = {"modulus": modulus, "naive": naive, "improved": improved}  # variant → table rows, before invalid ids
COMPILED_HASHINGS = HASHINGS | {"modulus": modulus_of_sizes, "naive": naive_reduced}
COMPARED_BYTES = 2**34  # of comparisons held at once


def skip_naive(case, variant):
    """Why `naive` cannot hold its comparisons, or None."""
    M, V = case.size("M", "V")
    if variant == "naive" and M * V > COMPARED_BYTES:
        return f"naive holds M × V comparisons at once, a byte each: {M * V / 2**30:.0f} GiB"
    return None


def rows_of(hashing, ids, tables, offsets, prepared):
    """The table rows (M, F) of the ids, by a hashing with what was prepared for it; of an id out of range the tables' last."""
    return torch.where(valid(ids), hashing(ids, offsets, *prepared), len(tables) - 1)


def embed(hashing, ids, tables, offsets, prepared):
    """The vectors (M, F, D) of the ids."""
    return F.embedding(rows_of(hashing, ids, tables, offsets, prepared), tables)
