"""The recommendation model as Flax modules."""

import flax.linen as nn
import jax.numpy as jnp

from implementations._shared import dlrm
from implementations._shared.jax import interactions, lookup
from implementations._shared.jax.perceptron import Perceptron, parameters


class Sparse(nn.Module):
    """The look-up of table rows: (M, F) → (M, F, D). Hashing comes before, because it has no parameters."""

    rows: int
    width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, rows):
        return nn.Embed(self.rows, self.width, dtype=self.dtype, param_dtype=self.dtype, name="tables")(rows)


class DLRM(nn.Module):
    """dense, sparse, interaction, prediction: dense (M, N0) and table rows (M, F) → (M, 1), with the activation `last`."""

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    rows: int
    interaction: str
    dtype: jnp.dtype
    last: str = "sigmoid"

    @nn.compact
    def __call__(self, dense, rows):
        vector = Perceptron(self.bottom, "none", self.dtype, name="dense")(dense)
        vectors = Sparse(self.rows, self.bottom[-1], self.dtype, name="sparse")(rows)
        crossed = interactions.FORMS[self.interaction](vector, vectors)
        return Perceptron(self.top, self.last, self.dtype, name="prediction")(crossed)


def widths(part):
    """The outputs' widths of a perceptron's case."""
    return part.size("N1", "N2", "N3", "N4")[: part.sizes["LAYERS"]]


def apply(case, variant, arguments, last="sigmoid"):
    """The model of the arguments of a call: (M, 1)."""
    given = dlrm.by_part(case, arguments)
    module = DLRM(
        widths(dlrm.dense_case(case)), widths(dlrm.prediction_case(case)), len(given.tables), case.options["interaction"],
        jnp.dtype(case.dtype), last,
    )  # fmt: skip
    params = {
        "dense": parameters(given.bottom[::2], given.bottom[1::2]),
        "sparse": {"tables": {"embedding": given.tables}},
        "prediction": parameters(given.top[::2], given.top[1::2]),
    }
    rows = lookup.rows_of(variant, given.ids, given.tables, given.offsets, given.prepared)
    return module.apply({"params": params}, given.dense, rows)
