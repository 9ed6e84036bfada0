"""embedding by Torch's embedding_bag, behind torch_eager's hashings: each look-up is a bag of its own. It is the operator that recommendation
models train with, and its gradient sorts the rows.
"""

import torch
import torch.nn.functional as F

from implementations._shared.torch import lookup
from implementations._shared.torch.autograd import in_mode
from implementations.embedding._limits import skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "torch"
VARIANTS = {"modulus": (), "improved": ()}
BACKWARD = {"modulus": ("accumulated",), "improved": ("accumulated",)}


def prepare(case, variant, ids, tables, offsets, known=None):
    return lookup.prepared(variant, offsets, known)


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    hashing, shape = {"modulus": lookup.modulus, "improved": lookup.improved}[variant], case.size("M", "F", "D")
    bags = torch.arange(shape[0] * shape[1], device=device.type)

    def call(ids, tables, offsets, known=None, *prepared):
        rows = torch.where(lookup.valid(ids), hashing(ids, offsets, *prepared), len(tables) - 1)
        return F.embedding_bag(rows.flatten(), tables, bags, mode="sum").view(shape)

    return in_mode(case, call, (1,))
