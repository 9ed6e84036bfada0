"""interaction in JAX through jax-triton: triton.py's kernels."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.interaction._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"default": ()}


def build(case, variant, device):
    (launch,) = launches(case, variant, device)
    M, F, D = case.size("M", "F", "D")
    width = D + F * (F + 1) // 2 if case.options["form"] == "dot" else ((F + 1) * D) ** 2

    def call(dense, sparse):
        return triton_call(
            *(dense, sparse),
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct((M, width), dense.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
