"""interaction in JAX, jitted. Flax has no layer for it; DLRMs written in Flax call such a function between their modules."""

from implementations._shared.jax.autograd import in_mode
from implementations._shared.jax.interactions import FORMS, TRAINED_FORMS
from implementations.interaction._limits import skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
VARIANTS = {"default": ()}
BACKWARD = {"default": ("left", "right", "stack")}


def build(case, variant, device):
    """call(dense (M, D), sparse (M, F, D)) → (M, D + F (F + 1) / 2) or (M, ((F + 1) D)²)."""
    forms = FORMS if case.mode == "forward" else TRAINED_FORMS
    return in_mode(case, forms[case.options["form"]], (0, 1))
