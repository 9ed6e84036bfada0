"""interaction through torch.compile: dot keeps the library's batched product between two kernels of Inductor's, outer is one
kernel. `max_autotune` lets Inductor choose among its own products, without CUDA graphs, which would copy the inputs."""

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations._shared.torch.interactions import form
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
    function = form(case.options["form"], case.sizes["F"], device)
    call = compiled(function, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
    return in_mode(case, call, (0, 1))
