"""The recommendation model as PyTorch's modules. Weights are arguments, as in every call here: a module has what stays the same."""

import torch
import torch.nn.functional as F
from torch import nn

from implementations._shared.torch import interactions, lookup


class Perceptron(nn.Module):
    """Linear layers with ReLU between them, none behind the last."""

    def forward(self, x, layers):
        """x (M, K) and W (K, N), b (N,), … of each layer → (M, N of the last)."""
        *hidden, (W_last, b_last) = zip(layers[::2], layers[1::2], strict=True)
        for W, b in hidden:
            x = F.relu(F.linear(x, W.T, b))
        return F.linear(x, W_last.T, b_last)


class Sparse(nn.Module):
    """Hashing and look-up of all features at once."""

    def __init__(self, hashing):
        super().__init__()
        self.hashing = hashing

    def forward(self, ids, tables, offsets, prepared):
        """ids (M, F) → (M, F, D)."""
        return lookup.embed(self.hashing, ids, tables, offsets, prepared)


class Interaction(nn.Module):
    """dense (M, D), sparse (M, F, D) → rows of their dots or outer products."""

    def __init__(self, form, features, device):
        super().__init__()
        self.form = interactions.form(form, features, device)

    def forward(self, dense, sparse):
        return self.form(dense, sparse)


class DLRM(nn.Module):
    """The model up to its logit."""

    def __init__(self, case, hashing, device):
        super().__init__()
        self.dense, self.sparse = Perceptron(), Sparse(hashing)
        self.interaction = Interaction(case.options["interaction"], case.sizes["F"], device)
        self.prediction = Perceptron()

    def forward(self, dense, ids, tables, offsets, bottom, top, prepared):
        """dense (M, N0), ids (M, F), the weights by part (_shared/dlrm.py) → logits (M, 1)."""
        vectors = self.sparse(ids, tables, offsets, prepared)
        return self.prediction(self.interaction(self.dense(dense, bottom), vectors), top)


class Probability(DLRM):
    """The model with the sigmoid behind it: (M, 1)."""

    def forward(self, *arguments):
        return torch.sigmoid(super().forward(*arguments))


def of_arrays(given):
    """The arguments of a model's call among the Arrays of _shared/dlrm.py."""
    return given.dense, given.ids, given.tables, given.offsets, given.bottom, given.top, given.prepared
