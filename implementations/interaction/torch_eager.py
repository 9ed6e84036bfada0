"""interaction as PyTorch's own operators, as DLRM's reference has them: dot concatenates, multiplies each sample's vectors with
their transpose, takes the lower triangle by index and concatenates (4 launches); outer is 2."""

import torch

from implementations._shared.torch.autograd import in_mode
from implementations.interaction._limits import skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "torch"
VARIANTS = {"default": ()}
BACKWARD = {"default": ("terms", "left", "right", "stack")}


def build(case, variant, device):
    """call(dense (M, D), sparse (M, F, D)) → (M, D + F (F + 1) / 2) or (M, ((F + 1) D)²)."""
    F = case.sizes["F"]
    i, j = torch.tril_indices(F + 1, F + 1, -1, device=device.type)

    def dot(dense, sparse):
        stack = torch.cat([dense[:, None], sparse], dim=1)
        products = torch.bmm(stack, stack.transpose(1, 2))
        return torch.cat([dense, products[:, i, j]], dim=1)

    def outer(dense, sparse):
        x = torch.cat([dense, sparse.flatten(1)], dim=1)
        return (x[:, :, None] * x[:, None, :]).flatten(1)

    return in_mode(case, dot if case.options["form"] == "dot" else outer, (0, 1))
