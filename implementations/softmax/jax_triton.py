"""softmax in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations.softmax import _triton_backward as backward
from implementations.softmax._triton_kernels import TUNABLES, config, fits, forward_launches, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"row": (), "persistent": (), "online": ()}
BACKWARD = {"row": ("probabilities",), "online": ("probabilities",)}


def build(case, variant, device, chosen):
    """call(x (R, C)) → (R, C), jitted; y is what the backward launch needs."""
    R = case.sizes["R"]

    def of(launch, *arrays):
        return run(launch, *arrays, R, out=jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype))

    if case.mode != "forward":
        (first,), (second,) = forward_launches(case, variant, device), backward.launches(case, variant, chosen)
        return jitted(lambda x: (y := of(first, x), y), lambda y, dy: of(second, y, dy))
    (launch,) = launches(case, variant, device, chosen)
    return jax.jit(lambda x: of(launch, x))
