"""DLRM's feature interaction in Torch, as its reference has it: `dot` concatenates, multiplies each sample's vectors with their
transpose, takes the lower triangle by index and concatenates; `outer` is a product of each value with each."""

import torch


def form(name, F, device):
    """The function of dense (M, D), sparse (M, F, D) → (M, D + F (F + 1) / 2) for dot, (M, ((F + 1) D)²) for outer."""
    i, j = torch.tril_indices(F + 1, F + 1, -1, device=device.type)

    def dot(dense, sparse):
        stack = torch.cat([dense[:, None], sparse], dim=1)
        products = torch.bmm(stack, stack.transpose(1, 2))
        return torch.cat([dense, products[:, i, j]], dim=1)

    def outer(dense, sparse):
        x = torch.cat([dense, sparse.flatten(1)], dim=1)
        return (x[:, :, None] * x[:, None, :]).flatten(1)

    return dot if name == "dot" else outer
