"""embedding through torch.compile: Inductor fuses hashing and gather. torch_eager.py says what the variants are; here `naive`
takes the least matching position, a reduction that Inductor does without holding the comparisons."""

from implementations._shared.torch import lookup
from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations.embedding._limits import skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "torch"
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
BACKWARD = {"modulus": ("accumulated",), "improved": ("accumulated",)}


def prepare(case, variant, ids, tables, offsets, known=None):
    return lookup.prepared(variant, offsets, known)


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    hashing = lookup.COMPILED_HASHINGS[variant]

    def call(ids, tables, offsets, known=None, *prepared):
        return lookup.embed(hashing, ids, tables, offsets, prepared)

    return in_mode(case, compiled(call), (1,))
