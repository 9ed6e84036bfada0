"""embedding as PyTorch's own operators.

modulus     one remainder for all features, one gather from all tables.
naive       as published: each feature's list of known values moves to the device in every call (which waits for the device,
            because the list lies in pageable memory) and is compared as a whole with all ids.
improved    the lists stay on the device as one sorted list; one binary search for all features.
"""

import torch
import torch.nn.functional as F

from implementations._shared.torch.autograd import in_mode
from implementations.embedding import _limits
from implementations.embedding._torch import improved, modulus, prepare, valid  # noqa: F401 (`prepare` is the contract's)

BACKEND = "torch"
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
BACKWARD = {"modulus": ("accumulated",), "improved": ("accumulated",)}
COMPARED_BYTES = 2**34  # of comparisons held at once


def skip(case, variant, device):
    M, V = case.size("M", "V")
    if variant == "naive" and M * V > COMPARED_BYTES:
        return f"naive holds M × V comparisons at once, a byte each: {M * V / 2**30:.0f} GiB"
    return _limits.skip(case, variant, device)


def naive(ids, offsets, *lists):
    """Table rows (M, F). The list's last entry stands for all unknown ids, so there every comparison is true; of several
    that are true, argmax takes the first."""
    positions = []
    for f, host_list in enumerate(lists):
        same = ids[:, f, None] == host_list.to(ids.device)
        same[:, -1] = True
        positions.append(same.view(torch.uint8).argmax(dim=1))
    return torch.stack(positions, dim=1) + offsets[:-1]


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    hashing = {"modulus": modulus, "naive": naive, "improved": improved}[variant]

    def call(ids, tables, offsets, known=None, *prepared):
        rows = hashing(ids, offsets, *prepared)
        return F.embedding(torch.where(valid(ids), rows, len(tables) - 1), tables)

    return in_mode(case, call, (1,))
