"""dlrm through torch.compile: the model of torch_eager as one graph. Library products; hashing, look-up and interaction are Inductor's.

The ids are one tensor (M, F) and the tables one, so that nothing in the graph hangs on how many features there are or on what the
lists of known values are: other inputs compile nothing anew, or the call raises (_shared/torch/compile.py). `naive` gets its lists
as tensors in the host's memory, which the graph moves to the device in every call.
"""

from implementations._shared import dlrm
from implementations._shared.dlrm import skip  # noqa: F401 (`skip` is part of the contract)
from implementations._shared.torch import lookup
from implementations._shared.torch.compile import compiled
from implementations._shared.torch.dlrm import Probability, of_arrays

BACKEND = "torch"
VARIANTS = {
    "modulus": ("product", "bias", "interaction"),
    "naive": ("product", "bias", "interaction"),
    "improved": ("product", "bias", "interaction"),
}


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return lookup.prepared(variant, given.offsets, given.known)


def build(case, variant, device):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1)."""
    model = compiled(Probability(case, lookup.COMPILED_HASHINGS[variant], device))

    def call(*arguments):
        return model(*of_arrays(dlrm.by_part(case, arguments)))

    return call
