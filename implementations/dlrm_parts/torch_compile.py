"""dlrm_parts through torch.compile: the model up to the part as one graph, as dlrm's torch_compile has the whole."""

from implementations._shared import dlrm
from implementations._shared.dlrm import skip  # noqa: F401 (`skip` is part of the contract)
from implementations._shared.torch import lookup
from implementations._shared.torch.compile import compiled
from implementations._shared.torch.dlrm import of_arrays
from implementations.dlrm_parts._torch import Until

BACKEND = "torch"
VARIANTS = {"modulus": ("product", "bias"), "naive": ("product", "bias"), "improved": ("product", "bias")}


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return lookup.prepared(variant, given.offsets, given.known)


def build(case, variant, device):
    """call(dense (M, N0), ids (M, F), weights …) → the outputs up to the part."""
    model = compiled(Until(case, lookup.COMPILED_HASHINGS[variant], device))

    def call(*arguments):
        return model(*of_arrays(dlrm.by_part(case, arguments)))

    return call
