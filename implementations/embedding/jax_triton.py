"""embedding in JAX through jax-triton: triton.py's kernels and variants."""

import jax

from implementations._shared.jax.launch import run
from implementations._shared.jax.lookup import prepared_for_kernels
from implementations._shared.triton.lookup import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"modulus": (), "naive": (), "improved": ()}


def prepare(case, variant, ids, tables, offsets, known=None):
    return prepared_for_kernels(variant, offsets, known)


def build(case, variant, device, chosen):
    (launch,) = launches(case, variant, device, chosen)
    shape = case.size("M", "F", "D")
    count = shape[0] if variant == "naive" else shape[0] * shape[1]

    def call(ids, tables, offsets, known=None, *prepared):
        return run(launch, ids, tables, offsets, *prepared, count, out=jax.ShapeDtypeStruct(shape, tables.dtype))

    return jax.jit(call)
