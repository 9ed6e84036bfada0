"""launch in JAX through jax-triton: triton.py's kernel."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.launch._triton_kernels import launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"default": ()}


def build(case, variant, device):
    (launch,) = launches(case, variant, device)

    def call(x):
        return triton_call(
            x,
            case.sizes["N"],
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
