"""interaction through torch.compile: dot keeps the library's batched product between two kernels of Inductor's, outer is one
kernel. `max_autotune` lets Inductor choose among its own products, without CUDA graphs, which would copy the inputs."""

import torch

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations.interaction import _limits

BACKEND = "torch"
VARIANTS = {"default": (), "max_autotune": ()}
BACKWARD = {"default": ("terms", "left", "right", "stack"), "max_autotune": ("terms", "left", "right", "stack")}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    if variant == "max_autotune" and case.options["form"] == "outer":
        return "outer has no product to choose among: default is the same"
    return _limits.skip(case, variant, device)


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

    form = dot if case.options["form"] == "dot" else outer
    call = compiled(form, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
    return in_mode(case, call, (0, 1))
