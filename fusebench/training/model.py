"""The model that is trained: its cases, its arrays, and the values that they begin with, the same bits for every framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusebench.contract import Case, Mathematics
from fusebench.data.schema import DENSE, SPARSE, Feature
from fusebench.drawing import generator
from fusebench.errors import UsageError

NEW = "new_"  # before the name of an output: a parameter after the step
TABLES, OFFSETS, KNOWN = "tables", "offsets", "known"


@dataclass(frozen=True)
class Model:
    """`step` is a case of the training kernel, `weights` its arrays by name, as they are before the first step. `parameters` are the
    names of those that a step replaces, in the order of its outputs that begin with NEW; `places` are those outputs' numbers."""

    step: Case
    weights: Mapping[str, np.ndarray]
    parameters: tuple[str, ...]
    places: tuple[int, ...]

    def described(self) -> dict[str, object]:
        """What another model would differ in, for a checkpoint."""
        rows = np.diff(self.weights[OFFSETS]).tolist()
        return {**self.step.sizes, **self.step.options, "table rows": rows}


def make(mathematics: Mathematics, case: Case, features: Sequence[Feature], seed: int) -> Model:
    """The model of a case, with a table row for each known value of the data's features and one for unknown ids; without features
    the tables are the case's.

    Layers of K inputs and N outputs are normal with variance 2 / (K + N) (Glorot), biases are 0, and the rows of a table of n rows
    uniform within ± 1/√n, as the published model has them. Raises UsageError where the case has other columns than the data.
    """
    for name, columns in (("N0", DENSE), ("F", SPARSE)):
        if case.sizes[name] != columns:
            raise UsageError(
                f"the case has {name}={case.sizes[name]}: the data has {columns} columns of that kind; case=small, main and large fit"
            )
    made = dict(mathematics.weights(case, generator(seed, 0)))
    if KNOWN in made and not features:
        raise UsageError(
            "option.hashing=lookup needs the known values of the data's metadata; option.hashing=modulus works without"
        )
    if features:
        rows = np.array([len(f.known) + 1 for f in features])
        made[OFFSETS] = np.concatenate([[0], np.cumsum(rows)])
    if features and KNOWN in made:
        made[KNOWN] = np.concatenate([part for f in features for part in (f.known, [-1])])
    rng = generator(seed, 1)
    for name, array in made.items():
        if name == TABLES:
            made[name] = _tables(made[OFFSETS], array.shape[1], rng)
        elif array.dtype.kind == "f":
            size = math.sqrt(2 / sum(array.shape)) if array.ndim == 2 else 0.0
            made[name] = np.float32(size) * rng.standard_normal(array.shape, dtype=np.float32)
    parameters = tuple(name for name, array in made.items() if array.dtype.kind == "f")
    places = tuple(n for n, name in enumerate(mathematics.outputs) if name.startswith(NEW))
    return Model(case, made, parameters, places[: len(parameters)])


def _tables(offsets: np.ndarray, D: int, rng: np.random.Generator) -> np.ndarray:
    """All tables below one another, and the row of NaN that no id should meet."""
    rows = np.diff(offsets)
    limits = np.repeat(1 / np.sqrt(rows), rows).astype(np.float32)
    tables = np.full((int(offsets[-1]) + 1, D), np.nan, np.float32)
    tables[:-1] = (2 * rng.random((len(limits), D), np.float32) - 1) * limits[:, None]
    return tables


def of_inference(case: Case, kernel: str, rows: int) -> Case:
    """The case of the model's forward pass, `rows` at a time."""
    return replace(case, kernel=kernel, sizes={**case.sizes, "M": rows})
