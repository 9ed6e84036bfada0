"""Input sets: made once per case from a seed in NumPy, stored bit for bit, read by every worker.

bfloat16 exists in NumPy only through ml_dtypes and not in .npy files, so it is stored as uint16 with the dtype's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from fusebench import hard
from fusebench.contract import Case
from fusebench.errors import Unstored


def make_sets(module: Any, case: Case, seed: int, count: int, kind: str = "plain") -> list[dict[str, np.ndarray]]:
    """`count` sets of inputs by name, in the order of the contract: `inputs`, which differ from set to set and are made hard
    in the way of `kind`, then `weights`, which are the same arrays in all. Floats are rounded to `case.dtype`; other dtypes
    are left alone."""
    weights: Callable[..., dict[str, np.ndarray]] = getattr(module, "weights", lambda case, rng: {})
    shared = _rounded(weights(case, np.random.default_rng([seed, 0])), case.dtype)
    sets = []
    for number in range(1, count + 1):
        made = module.inputs(case, np.random.default_rng([seed, number]))
        sets.append(_rounded(hard.change(module, case, kind, made, [seed, number]), case.dtype) | shared)
    return sets


def _rounded(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    floats = {n: np.asarray(a) for n, a in arrays.items()}
    return {n: a.astype(numpy_dtype(dtype)) if a.dtype.kind == "f" else a for n, a in floats.items()}


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of that name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def save(arrays: Sequence[np.ndarray], folder: Path, stem: str) -> list[list[str]]:
    """Writes the arrays to `folder` and returns [file name, dtype name] of each; the same array object is written once.

    Raises Unstored if the disk does not take them.
    """
    written: dict[int, list[str]] = {}
    for index, array in enumerate(arrays):
        if id(array) in written:
            continue
        name = f"{stem}{index}.npy"
        try:
            np.save(folder / name, array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array)
        except OSError as error:  # a full disk: NumPy says "1000 requested and 24 written", without an errno
            raise Unstored(f"{folder / name} cannot be written: {error}") from error
        written[id(array)] = [name, array.dtype.name]
    return [written[id(array)] for array in arrays]


def save_sets(sets: Sequence[Mapping[str, np.ndarray]], folder: Path) -> list[list[list[str]]]:
    """Writes the input sets and returns each one's files; a weight, which all share, is one file."""
    files = save([array for arrays in sets for array in arrays.values()], folder, "input")
    return [files[i : i + len(sets[0])] for i in range(0, len(files), len(sets[0]))]


def load(files: Sequence[Sequence[str]], folder: Path, mapped: bool = False) -> list[np.ndarray]:
    """Reads what `save` wrote; a file that is named twice is read once and shared. With `mapped` only what is looked at."""
    mode: Literal["r"] | None = "r" if mapped else None
    arrays = {
        name: np.asarray(np.load(folder / name, mmap_mode=mode)).view(numpy_dtype(dtype))
        for name, dtype in {tuple(f) for f in files}
    }
    return [arrays[name] for name, _ in files]
