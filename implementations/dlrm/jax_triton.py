"""dlrm in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared import dlrm
from implementations._shared.jax.launch import run
from implementations._shared.jax.lookup import prepared_for_kernels
from implementations.dlrm._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "modulus": ("hidden", "interaction"),
    "improved": ("hidden", "interaction"),
    "naive": ("hidden", "interaction"),
}


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return prepared_for_kernels(variant, given.offsets, given.known)


def build(case, variant, device, chosen):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1), jitted."""
    bottom, *looked_up, interaction, top = launches(case, variant, device, chosen)
    M, F, D = case.size("M", "F", "D")

    def call(*arguments):
        given = dlrm.by_part(case, arguments)

        def array(*shape):
            return jax.ShapeDtypeStruct(shape, given.tables.dtype)

        vector = run(bottom, given.dense, *given.bottom, M, out=array(M, D))
        crossed = array(M, dlrm.interaction_width(case))
        if looked_up:
            sparse = run(looked_up[0], given.ids, given.tables, given.offsets, *given.prepared, M, out=array(M, F, D))
            crossed = run(interaction, vector, sparse, out=crossed)
        else:
            crossed = run(interaction, vector, given.ids, given.tables, given.offsets, *given.prepared, out=crossed)
        return run(top, crossed, *given.top, M, out=array(M, 1))

    return jax.jit(call)
