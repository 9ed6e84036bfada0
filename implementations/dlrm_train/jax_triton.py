"""dlrm_train in JAX through jax-triton: triton.py's kernels on donated parameters."""

import jax
import jax.numpy as jnp

from implementations._shared import dlrm
from implementations._shared.jax.launch import run as run_launch
from implementations.dlrm_train._step import layers_of
from implementations.dlrm_train._triton_step import (  # noqa: F401 (parts of the contract)
    TUNABLES,
    config,
    fits,
    launches,
    named_launches,
    run_step,
    skip,
)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"modulus_in_place": ("cast", "hidden", "interaction", "dz", "dhidden", "dinteraction", "dvectors")}
IN_PLACE = {
    "modulus_in_place": (
        "tables", "bottom_W1", "bottom_b1", "bottom_W2", "bottom_b2", "bottom_W3", "bottom_b3", "bottom_W4", "bottom_b4",
        "top_W1", "top_b1", "top_W2", "top_b2", "top_W3", "top_b3",
    ),
}  # fmt: skip


def build(case, variant, device, chosen):
    """call(dense (M, N0), ids (M, F), labels (M,), weights …) → loss, dvectors, tables, dW, db, W, b of each layer."""
    launched, count = named_launches(case, variant, device, chosen), len(layers_of(case)[0])
    # JAX gives the memory of a donated array to the first output of its shape, which would be the gradient: what is overwritten comes first
    new = [2, *(5 + 4 * n + i for n in range(count) for i in (0, 1))]
    order = [*new, *(i for i in range(3 + 4 * count) if i not in new)]

    def step(dense, ids, labels, *weights):
        made_last = ()

        def run(name, inputs, overwritten, made):
            nonlocal made_last
            out = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in overwritten]
            out += [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in made]
            aliases = {len(inputs) + n: n for n in range(len(overwritten))}
            # who else reads what is overwritten has done so: without a word of it XLA copies
            overwritten, _ = jax.lax.optimization_barrier((tuple(overwritten), made_last))
            made_last = run_launch(launched[name], *inputs, *overwritten, out=out, aliases=aliases)
            return made_last

        outputs = run_step(case, dlrm.by_part(case, (dense, ids, *weights)), labels, run)
        return tuple(outputs[i] for i in order)

    donating = jax.jit(step, donate_argnums=(3, *range(5, 5 + 2 * count)))  # tables, and W and b of each layer
    places = sorted(range(len(order)), key=order.__getitem__)

    def call(*arguments):
        outputs = donating(*arguments)
        return tuple(outputs[place] for place in places)

    return call
