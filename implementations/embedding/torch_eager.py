"""embedding as PyTorch's own operators.

modulus     one remainder for all features, one gather from all tables.
naive       as published: each feature's list of known values moves to the device in every call (which waits for the device,
            because the list lies in pageable memory) and is compared as a whole with all ids.
improved    the lists stay on the device as one sorted list; one binary search for all features.
"""

from implementations._shared.torch import lookup
from implementations._shared.torch.autograd import in_mode
from implementations.embedding import _limits

BACKEND = "torch"
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
BACKWARD = {"modulus": ("accumulated",), "improved": ("accumulated",)}


def skip(case, variant, device):
    return lookup.skip_naive(case, variant) or _limits.skip(case, variant, device)


def prepare(case, variant, ids, tables, offsets, known=None):
    return lookup.prepared(variant, offsets, known)


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    hashing = lookup.HASHINGS[variant]

    def call(ids, tables, offsets, known=None, *prepared):
        return lookup.embed(hashing, ids, tables, offsets, prepared)

    return in_mode(case, call, (1,))
