"""interaction as PyTorch's own operators, as DLRM's reference has them: dot concatenates, multiplies each sample's vectors with
their transpose, takes the lower triangle by index and concatenates (4 launches); outer is 2."""

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.interactions import form
from implementations.interaction._limits import skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "torch"
VARIANTS = {"default": ()}
BACKWARD = {"default": ("terms", "left", "right", "stack")}


def build(case, variant, device):
    """call(dense (M, D), sparse (M, F, D)) → (M, D + F (F + 1) / 2) or (M, ((F + 1) D)²)."""
    return in_mode(case, form(case.options["form"], case.sizes["F"], device), (0, 1))
