"""dlrm in JAX through jax-triton: triton.py's kernels and variants."""

import jax
import jax.numpy as jnp

from implementations._shared import dlrm
from implementations._shared.jax.launch import run
from implementations._shared.jax.lookup import prepared_for_kernels
from implementations._shared.triton.launch import DTYPES
from implementations.dlrm._triton_kernels import (  # noqa: F401 (parts of the contract)
    TUNABLES,
    config,
    fits,
    hashing_of,
    launches,
    named_launches,
    outputs_of,
    run_model,
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
    made = outputs_of(case, variant, described)
    launched = {name: returning(described[name], shape, numbers) for name, (shape, numbers) in made.items()}
    return jax.jit(lambda *arguments: run_model(dlrm.by_part(case, arguments), launched, lambda known: known))


def returning(launch, shape, numbers):
    """The launch as a function of its arrays, which returns its output."""
    out = jax.ShapeDtypeStruct(shape, jnp.dtype(DTYPES[[*launch.signature.values()][-1]]))
    return lambda *arrays: run(launch, *arrays, *numbers.values(), out=out)
