"""dlrm_parts as PyTorch's modules and operators: dlrm's torch_eager up to the part."""

from implementations._shared import dlrm
from implementations._shared.torch import lookup
from implementations._shared.torch.dlrm import of_arrays
from implementations.dlrm_parts._torch import Until

BACKEND = "torch"
VARIANTS = {"modulus": ("product", "bias"), "naive": ("product", "bias"), "improved": ("product", "bias")}


def skip(case, variant, device):
    return lookup.skip_naive(case, variant) or dlrm.skip(case, variant, device)


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return lookup.prepared(variant, given.offsets, given.known)


def build(case, variant, device):
    """call(dense (M, N0), ids (M, F), weights …) → the outputs up to the part."""
    model = Until(case, lookup.HASHINGS[variant], device)

    def call(*arguments):
        return model(*of_arrays(dlrm.by_part(case, arguments)))

    return call
