"""softmax in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.softmax._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"row": (), "persistent": (), "online": ()}


def build(case, variant, device):
    """call(x (R, C)) → (R, C), jitted."""
    (launch,) = launches(case, variant, device)

    def call(x):
        return triton_call(
            x,
            case.sizes["R"],
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.constexprs,
        )

    return jax.jit(call)
