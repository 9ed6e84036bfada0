"""interaction in JAX through jax-triton: triton.py's kernels."""

import jax

from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations.interaction import _triton_backward as backward
from implementations.interaction import _triton_kernels as kernels
from implementations.interaction._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ()}
BACKWARD = {"default": ()}


def build(case, variant, device, chosen):
    """call(dense (M, D), sparse (M, F, D)) → (M, D + F (F + 1) / 2) or (M, ((F + 1) D)²), jitted."""
    (launch,) = kernels.forward_launches(case, chosen if case.mode == "forward" else kernels.forward_config(case))
    M, F, D = case.size("M", "F", "D")
    width = D + F * (F + 1) // 2 if case.options["form"] == "dot" else ((F + 1) * D) ** 2

    def call(dense, sparse):
        return run(launch, dense, sparse, out=jax.ShapeDtypeStruct((M, width), dense.dtype))

    if case.mode == "forward":
        return jax.jit(call)
    (behind,) = backward.launches(case, chosen)

    def gradient(inputs, dy):
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in inputs]
        return run(behind, *inputs, dy, out=shapes)

    return jitted(lambda dense, sparse: (call(dense, sparse), (dense, sparse)), gradient)
