"""dlrm_train as PyTorch's operators and autograd.

modulus, improved   the hashings of dlrm; the step returns new parameters
…_in_place          the step overwrites the parameters, as an optimizer does: of the tables it touches the rows that were looked up
"""

import torch

from implementations.dlrm_train import _torch
from implementations.dlrm_train._step import IN_PLACE, skip  # noqa: F401 (parts of the contract)
from implementations.dlrm_train._torch import prepare  # noqa: F401 (so is this)

BACKEND = "torch"
VARIANTS = {
    "modulus_in_place": ("cast", "product", "bias", "interaction", "dz", "dhidden", "dinteraction", "terms", "left", "right", "stack", "dweights"),
    "modulus": ("cast", "product", "bias", "interaction", "dz", "dhidden", "dinteraction", "terms", "left", "right", "stack", "dweights"),
    "improved_in_place": ("cast", "product", "bias", "interaction", "dz", "dhidden", "dinteraction", "terms", "left", "right", "stack", "dweights"),
    "improved": ("cast", "product", "bias", "interaction", "dz", "dhidden", "dinteraction", "terms", "left", "right", "stack", "dweights"),
}  # fmt: skip


def build(case, variant, device):
    """call(dense (M, N0), ids (M, F), labels (M,), weights …) → loss, dvectors, new_tables, dW, db, new_W, new_b of each layer."""
    loss_of = _torch.loss_of(case, device)

    def gradients(vectors, layers, dense, labels):
        leaves = [a.detach().requires_grad_() for a in (vectors, *layers)]
        with torch.enable_grad():
            loss = loss_of(leaves[0], leaves[1:], dense, labels)
        dvectors, *steps = torch.autograd.grad(loss, leaves)
        return loss.detach(), dvectors, steps

    return _torch.step(case, variant, gradients)
