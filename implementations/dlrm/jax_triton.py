"""dlrm in JAX through jax-triton: triton.py's kernels and variants."""

import jax
import jax.numpy as jnp

from implementations._shared import dlrm
from implementations._shared.jax.launch import run
from implementations._shared.jax.lookup import prepared_for_kernels
from implementations.dlrm._triton_kernels import (  # noqa: F401 (parts of the contract)
    TUNABLES,
    config,
    fits,
    hashing_of,
    launches,
    named_launches,
    run_model,
    shares_of,
    skip,
)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "modulus": ("hidden", "interaction"),
    "improved": ("hidden", "interaction"),
    "naive": ("hidden", "interaction"),
    "modulus_split": ("hidden", "interaction"),
    "improved_split": ("hidden", "interaction"),
}


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return prepared_for_kernels(hashing_of(variant), given.offsets, given.known)


def build(case, variant, device, chosen):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1), jitted."""
    described = named_launches(case, variant, device, chosen)
    launched, shares = {name: filling(launch) for name, launch in described.items()}, shares_of(described)

    def empty(shape, dtype=None):
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype or case.dtype))

    def call(*arguments):
        return run_model(case, dlrm.by_part(case, arguments), launched, empty, shares, lambda known: known)

    return jax.jit(call)


def filling(launch):
    """The launch as a function of its inputs and of what its output is."""
    return lambda *arguments: run(launch, *arguments[:-1], out=arguments[-1])
