"""embedding through torch.compile: Inductor fuses hashing and gather. torch_eager.py says what the variants are; here `naive`
takes the least matching position, a reduction that Inductor does without holding the comparisons."""

import torch
import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations.embedding._limits import skip  # noqa: F401 (`skip` is part of the contract)
from implementations.embedding._torch import improved, modulus, prepare, valid  # noqa: F401 (so is `prepare`)

BACKEND = "torch"
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
BACKWARD = {"modulus": ("accumulated",), "improved": ("accumulated",)}


def naive(ids, offsets, *lists):
    """Table rows (M, F): the least position that has the id, or else the list's last."""
    positions = []
    for f, host_list in enumerate(lists):
        values, last = host_list.to(ids.device), len(host_list) - 1
        same = ids[:, f, None] == values[None, :]
        positions.append(torch.where(same, torch.arange(last + 1, device=ids.device), last).amin(dim=1))
    return torch.stack(positions, dim=1) + offsets[:-1]


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    hashing = {"modulus": modulus, "naive": naive, "improved": improved}[variant]

    def call(ids, tables, offsets, known=None, *prepared):
        rows = hashing(ids, offsets, *prepared)
        return F.embedding(torch.where(valid(ids), rows, len(tables) - 1), tables)

    return in_mode(case, compiled(call), (1,))
