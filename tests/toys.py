"""Kernels of one line, with which a test sees what the judge does with one thing at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from fusebench.contract import Case, Mathematics
from fusebench.discovery import normalised
from fusebench.dtypes import numpy_dtype
from fusebench.parity.judge import Judge

ROWS = {"x": 0, "y": 0}  # of the input and of every output


def module(formula: Any, flops: float = 0, moved: float = 0, rows: Any = ROWS, **more: Any) -> SimpleNamespace:
    """A kernel.py of that formula; `flops` and `moved` say how large its cases pretend to be."""
    names = {
        "DIMENSIONS": ("N",), "BATCH": "N", "CASES": {"one": {"N": 1}}, "ROWS": rows, "inputs": lambda case, rng: {},
        "formula": formula, "flops": lambda case: flops, "moved_bytes": lambda case: moved,
    }  # fmt: skip
    return SimpleNamespace(**(names | more))


def kernel(*asked: Any, **more: Any) -> Mathematics:
    """The same as everything but the importer sees it."""
    return normalised(module(*asked, **more))


def case(dtype: str = "float32", precision: str = "ieee", **sizes: int) -> Case:
    return Case("toy", sizes, dtype, precision)


def judge(formula: Any, x: Any, dtype: str = "float32", seed: int = 0, rows_seed: int = 0, **more: Any) -> Judge:
    """The judge of a kernel with one input, `x`."""
    return Judge(kernel(formula, **more), case(dtype), {"x": store(x, dtype)}, seed, rows_seed)


def store(values: Any, dtype: str) -> np.ndarray:
    """The values in the storage dtype."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float64).astype(numpy_dtype(dtype))


def edit(array: np.ndarray, at: Any, value: Any) -> np.ndarray:
    """A copy with some of its elements changed."""
    array = array.copy()
    array[at] = value
    return array


def step(value: float, dtype: str, by: int = 1) -> Any:
    """The number of the dtype that many places further from 0, from its bits alone."""
    stored = store(value, dtype)
    bits = stored.view(np.uint32 if dtype == "float32" else np.uint16)
    return (bits + np.array(by).astype(bits.dtype)).view(stored.dtype)


def copied(case: Case, r: Any, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Nothing rounds."""
    return (x,)


def part(case: Case, r: Any, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """One point that may be stored, of values that no dtype holds."""
    return (r.round("part", x / np.pi),)
