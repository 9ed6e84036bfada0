"""dlrm_train through torch.compile: forward, backward and the update in one graph, differentiated by torch.func. The variants are those of
torch_eager.py."""

import torch

from implementations._shared.torch import lookup
from implementations._shared.torch.compile import compiled
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
    differentiated = torch.func.grad_and_value(_torch.loss_of(case, device), argnums=(0, 1))

    def gradients(vectors, layers, dense, labels):
        (dvectors, steps), loss = differentiated(vectors, list(layers), dense, labels)
        return loss, dvectors, steps

    return compiled(_torch.step(case, variant, gradients, lookup.COMPILED_HASHINGS))
