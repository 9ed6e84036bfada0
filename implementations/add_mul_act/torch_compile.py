"""add_mul_act through torch.compile: Inductor makes one kernel of it, in float32 up to the store; `in_place` lets it write
into x."""

from implementations._shared.torch.autograd import in_mode
from implementations._shared.torch.compile import compiled
from implementations._shared.torch.operators import ACTIVATIONS

BACKEND = "torch"
VARIANTS = {"default": (), "in_place": ()}
# the forward graph leaves what GELU and SiLU take in the storage dtype
BACKWARD = {"default": ("bias", "value", "dsum")}
IN_PLACE = {"in_place": ("x",)}


def build(case, variant, device):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N); x itself where `in_place`."""
    activate = ACTIVATIONS[case.options["activation"]]

    def add_mul_act(x, z, multiplier, b):
        return activate(x + multiplier * z + b)

    def in_place(x, z, multiplier, b):
        return x.copy_(add_mul_act(x, z, multiplier, b))

    return in_mode(case, compiled(in_place if variant == "in_place" else add_mul_act), (0, 1, 3))
