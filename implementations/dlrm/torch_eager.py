"""dlrm as PyTorch's modules and operators (_shared/torch/dlrm.py): dense, sparse, interaction, prediction.

modulus, naive, improved: the hashings of embedding's torch_eager.
"""

from implementations._shared import dlrm
from implementations._shared.torch import lookup
from implementations._shared.torch.dlrm import Probability, of_arrays

BACKEND = "torch"
VARIANTS = {
    "modulus": ("product", "bias", "interaction"),
    "naive": ("product", "bias", "interaction"),
    "improved": ("product", "bias", "interaction"),
}


def skip(case, variant, device):
    return lookup.skip_naive(case, variant) or dlrm.skip(case, variant, device)


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return lookup.prepared(variant, given.offsets, given.known)


def build(case, variant, device):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1)."""
    model = Probability(case, lookup.HASHINGS[variant], device)

    def call(*arguments):
        return model(*of_arrays(dlrm.by_part(case, arguments)))

    return call
