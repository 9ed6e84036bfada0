"""embedding through torch.compile: Inductor fuses hashing and gather. torch_eager.py says what the variants are; here `naive`
takes the least matching position, a reduction that Inductor does without holding the comparisons."""

import torch
import torch.nn.functional as F

from implementations._compile import compiled
from implementations.embedding._limits import skip  # noqa: F401 (`skip` is part of the contract)
from implementations.embedding._torch import FEATURE_BIT, search_list, valid

BACKEND = "torch"
VARIANTS = {"modulus": (), "naive": (), "improved": ()}


def prepare(case, variant, ids, tables, offsets, known=None):
    """naive: the feature's lists in the host's memory, F tensors. improved: the sorted list and its table rows."""
    if variant == "naive":
        return tuple(known.cpu().split((offsets[1:] - offsets[:-1]).tolist()))
    return search_list(offsets, known) if variant == "improved" else ()


def modulus(ids, offsets):
    """Table rows (M, F)."""
    begin = offsets[:-1]
    return (ids + 1) % (offsets[1:] - begin) + begin


def naive(ids, offsets, *lists):
    """Table rows (M, F): the least position that has the id, or else the list's last."""
    positions = []
    for f, host_list in enumerate(lists):
        values, last = host_list.to(ids.device), len(host_list) - 1
        same = ids[:, f, None] == values[None, :]
        positions.append(torch.where(same, torch.arange(last + 1, device=ids.device), last).amin(dim=1))
    return torch.stack(positions, dim=1) + offsets[:-1]


def improved(ids, offsets, keys, rows):
    """Table rows (M, F). An id out of range is searched as 0, so that the place found always exists."""
    wanted = (torch.arange(ids.shape[1], device=ids.device) << FEATURE_BIT) + torch.where(valid(ids), ids, 0)
    place = torch.searchsorted(keys, wanted)
    return torch.where(keys[place] == wanted, rows[place], offsets[1:] - 1)


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    hashing = {"modulus": modulus, "naive": naive, "improved": improved}[variant]

    def call(ids, tables, offsets, known=None, *prepared):
        rows = hashing(ids, offsets, *prepared)
        return F.embedding(torch.where(valid(ids), rows, len(tables) - 1), tables)

    return compiled(call)
