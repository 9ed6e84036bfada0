"""A formula of a large case on the device: its inputs there, of some rows or of all, and its evaluations, in pieces that memory holds."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from fusebench import modes
from fusebench.backends import torch as backend
from fusebench.contract import Device, Mathematics
from fusebench.discovery import normalised
from fusebench.parity.evaluations import Evaluations, evaluations
from fusebench.parity.rounding import Exact, evaluate
from fusebench.parity.tensor import Random, Tensor
from fusebench.parity.verdict import Asked

Formula = Callable[..., Any]
Held: TypeAlias = np.ndarray | torch.Tensor

# Of the largest intermediate result: 1.6 GB in float64 on a GPU, of which some ten live at once.
CHUNK_ELEMENTS = {"cuda": 2e8, "cpu": 5e5}
HELD_BYTES = 2**32  # of an input or an output that a GPU holds whole


def _mathematics(asked: Asked) -> Mathematics:
    return normalised(importlib.import_module(f"implementations.{asked.case.kernel}.kernel"))


def formula_of(asked: Asked) -> Formula:
    return modes.formula(_mathematics(asked), asked.case.mode, asked.part)


def evaluations_of(
    asked: Asked, formula: Formula, inputs: list[Any], rows: np.ndarray | None, random: Random, draws: int
) -> Evaluations:
    """The evaluations of those rows, or of all."""
    return evaluations(
        formula,
        asked.case,
        inputs,
        asked.points,
        random,
        numbers(asked, rows),
        draws,
        lambda o: _tensor(o, random.device),
    )


def numbers(asked: Asked, rows: np.ndarray | None) -> np.ndarray | None:
    """The numbers of the rows that a formula of those has: in slices all."""
    return None if asked.sliced else rows


def largest_result(asked: Asked, formula: Formula, inputs: list[Any]) -> float:
    """How many elements the largest intermediate result or output of a whole case has."""
    sized = Sized()
    outputs = evaluate(formula, asked.case, sized, inputs)
    return float(max(sized.largest, *map(np.size, outputs)))


def inputs_of(asked: Asked, arrays: Sequence[np.ndarray], device: str) -> Callable[[np.ndarray | None], list[Any]]:
    """What gives the formula's inputs of some rows, or of all."""
    kept = [held(a, device) for a in arrays]
    whole = [_argument(a, device) if axis is None else None for a, axis in zip(kept, asked.row_axes, strict=True)]

    def inputs(chosen: np.ndarray | None) -> list[Any]:
        return [
            w if axis is None else _argument(a if chosen is None else take(a, chosen, axis), device)
            for a, w, axis in zip(kept, whole, asked.row_axes, strict=True)
        ]

    return inputs


def elements_of_a_row(
    asked: Asked, formula: Formula, rows: np.ndarray, inputs: Callable[[np.ndarray], list[Any]]
) -> float:
    """How many elements the largest intermediate result has for each of the rows."""
    # a causal row sees only what is before it; slices are alike
    ends = rows[:1] if asked.sliced else np.unique(rows[[*range(len(rows))[:2], *range(len(rows))[-2:]]])
    sized = Sized(numbers(asked, ends))
    outputs = evaluate(formula, asked.case, sized, inputs(ends))
    return max(1.0, sized.largest / len(ends), *(np.size(o) / len(ends) for o in outputs))


def chunks_of(rows: np.ndarray, elements: float, device: str) -> list[np.ndarray]:
    """The rows, as many at a time as memory holds where each has so many elements."""
    step = max(1, int(CHUNK_ELEMENTS[device] / elements))
    return [rows[first : first + step] for first in range(0, len(rows), step)]


class Sized(Exact):
    """Notes how large the values are that pass the points."""

    largest = 0

    def round(self, point: str, value: Any) -> Any:
        self.largest = max(self.largest, np.size(value))
        return value

    def function(self, value: Any, spacings: float = 0.0) -> Any:
        return self.round("", value)

    def compute(self, value: Any) -> Any:
        return self.round("", value)

    def dot(self, a: Any, b: Any) -> Any:
        return self.round("", a @ b)


def held(array: np.ndarray, device: str) -> Held:
    """Where chunks take their rows from: floats that are not too many go to a GPU once, as they are stored, instead of row by row."""
    if device == "cpu" or array.dtype.kind in "iub" or array.nbytes > HELD_BYTES:
        return array
    return _sent(array, device)


def _sent(array: np.ndarray, device: str) -> torch.Tensor:
    """The array on the device, as it is stored."""
    if device == "cpu":
        return backend.put(np.array(array), Device(device, ""))
    with (
        warnings.catch_warnings()
    ):  # of memory that may not be written to, as a file's: a copy of it takes longer than sending it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return backend.put(array, Device(device, ""))


def _argument(values: Held, device: str) -> Any:
    """What the formula gets: floats on the device; integers stay, because masks and indices are little work."""
    integers = isinstance(values, np.ndarray) and values.dtype.kind in "iub"
    return values if integers else Tensor(put(values, device))


def put(values: Held, device: str) -> torch.Tensor:
    """The values on the device, floats in float64: made wide there, because the host takes seconds for a gigabyte."""
    tensor = values if isinstance(values, torch.Tensor) else _sent(values, device)
    return tensor.double() if tensor.is_floating_point() else tensor


def take(values: Held, rows: np.ndarray, axis: int) -> Held:
    """The rows along an axis."""
    in_order = len(rows) and rows[-1] - rows[0] == len(rows) - 1  # they follow one another, as nearly always
    if isinstance(values, torch.Tensor):
        if in_order:
            return values.narrow(axis, int(rows[0]), len(rows))
        return values.index_select(axis, torch.as_tensor(rows, device=values.device))
    if in_order:
        at = [slice(None)] * values.ndim
        at[axis] = slice(int(rows[0]), int(rows[-1]) + 1)
        return values[tuple(at)]
    return np.take(values, rows, axis=axis)


def _tensor(value: Any, device: str) -> Tensor:
    tensor = value.tensor if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value), device=device)
    return Tensor(tensor.double().contiguous())
