"""add_mul_act in JAX through jax-triton: triton.py's kernel. `in_place` donates x, and the kernel writes y where x was."""

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.add_mul_act._triton_kernels import launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {"default": (), "in_place": ()}
IN_PLACE = {"in_place": ("x",)}


def build(case, variant, device):
    """call(x (M, N), z (M, N), multiplier (), b (N,)) → (M, N)."""
    (launch,) = launches(case, variant, device)
    in_place = variant == "in_place"

    def call(x, z, multiplier, b):
        return triton_call(
            *(x, z, multiplier, b, x.size),
            kernel=launch.kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            input_output_aliases={0: 0} if in_place else None,
            **launch.constexprs,
        )

    return jax.jit(call, donate_argnums=0 if in_place else ())
