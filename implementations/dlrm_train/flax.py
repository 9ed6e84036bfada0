"""dlrm_train in JAX, jitted: the model's functions, differentiated by jax.value_and_grad.

modulus, improved   the hashings of dlrm; the step returns new parameters
…_in_place          the parameters are donated, so that XLA may write the new ones over them

The layers add their biases by _shared/jax/operators.py and not by nn.Dense, whose gradient sums 16 bits in 16 bits.
"""

import jax
import jax.numpy as jnp

from implementations._shared import dlrm
from implementations._shared.dlrm import LEARNING_RATE
from implementations._shared.jax import interactions, lookup
from implementations._shared.jax.operators import dense as dense_layer
from implementations.dlrm_train._step import IN_PLACE, hashing, in_place, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {
    "modulus_in_place": ("cast", "product", "bias", "interaction", "dz", "dhidden", "dinteraction", "left", "right", "stack", "dweights"),
    "modulus": ("cast", "product", "bias", "interaction", "dz", "dhidden", "dinteraction", "left", "right", "stack", "dweights"),
    "improved_in_place": ("cast", "product", "bias", "interaction", "dz", "dhidden", "dinteraction", "left", "right", "stack", "dweights"),
    "improved": ("cast", "product", "bias", "interaction", "dz", "dhidden", "dinteraction", "left", "right", "stack", "dweights"),
}  # fmt: skip


def prepare(case, variant, dense, ids, labels, *weights):
    given = dlrm.by_part(case, (dense, ids, *weights))
    return lookup.prepared(hashing(variant), given.offsets, given.known)


def build(case, variant, device):
    """call(dense (M, N0), ids (M, F), labels (M,), weights …) → loss, dvectors, new_tables, dW, db, new_W, new_b of each layer."""
    count = 2 * case.sizes["LAYERS"]
    form, part = interactions.TRAINED_FORMS[case.options["interaction"]], dlrm.dense_case(case)

    def perceptron(x, layers):
        for n in range(0, len(layers), 2):
            x = dense_layer(part, jax.nn.relu(x) if n else x, *layers[n : n + 2])
        return x

    def loss_of(vectors, layers, dense, labels):
        layers = [p.astype(dense.dtype) for p in layers]
        crossed = form(perceptron(dense, layers[:count]), vectors)
        z = perceptron(crossed, layers[count:])[:, 0].astype(jnp.float32)
        return (jax.nn.softplus(z) - labels * z).mean()

    def call(dense, ids, labels, *weights):
        given = dlrm.by_part(case, (dense, ids, *weights))
        layers = (*given.bottom, *given.top)
        rows = lookup.rows_of(hashing(variant), ids, given.tables, given.offsets, given.prepared)
        vectors = jnp.take(given.tables, rows, axis=0).astype(dense.dtype)
        loss, (dvectors, steps) = jax.value_and_grad(loss_of, argnums=(0, 1))(vectors, layers, dense, labels)
        tables = given.tables.at[rows].add(-LEARNING_RATE * dvectors.astype(jnp.float32))
        new = [p - LEARNING_RATE * d for p, d in zip(layers, steps, strict=True)]
        outputs = [loss, dvectors, tables]
        for n in range(0, len(new), 2):
            outputs += [*steps[n : n + 2], *new[n : n + 2]]
        return tuple(outputs)

    layers = count + 2 * dlrm.layers_of_prediction(case)
    donated = (3, *range(5, 5 + layers)) if in_place(variant) else ()  # tables, and W and b of each layer
    return jax.jit(call, donate_argnums=donated)
