"""Input sets: made once per case from a seed in NumPy, stored bit for bit, read by every worker.

bfloat16 and float8 exist in NumPy only through ml_dtypes and not in .npy files, so they are stored as integers with the dtype's name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fusebench import drawing, hard, modes
from fusebench.contract import Case, Mathematics
from fusebench.dtypes import numpy_dtype
from fusebench.errors import StorageError

UPSTREAM = 1  # the stream of upstream gradients beside that of the inputs


@dataclass(frozen=True)
class Stored:
    """An array on disk: the name of its .npy file, and of its dtype."""

    file: str
    dtype: str


def make_sets(
    mathematics: Mathematics, case: Case, seed: int, count: int, kind: str = "plain"
) -> list[dict[str, np.ndarray]]:
    """`count` sets of inputs by name, in the order of the contract: `inputs`, which differ from set to set, then `weights`,
    which are the same arrays in all, then in the backward modes the upstream gradients, which differ again. They are made hard in the way of `kind`, weights only where `hard` names them.
    Each kind has weights of its own: a call that goes on with those of an earlier one is wrong. Floats are rounded to `case.dtype`, or to their
    own in OWN_DTYPES; other dtypes are left alone."""
    own = () if kind == "plain" else (hard.KINDS.index(kind),)
    fixed = mathematics.weights(case, drawing.generator(seed, 0, *own))
    if mathematics.hard is not None:
        fixed = hard.change(mathematics, case, kind, fixed, [seed, 0])
    shared = _rounded(fixed, case.dtype, mathematics.own_dtypes)
    return [make_set(mathematics, case, seed, number, shared, kind) for number in range(count)]


def make_set(
    mathematics: Mathematics, case: Case, seed: int, number: int, weights: Mapping[str, np.ndarray], kind: str = "plain"
) -> dict[str, np.ndarray]:
    """The set of that number, from 0 on, of `make_sets`, with those weights."""
    own, stream = mathematics.own_dtypes, number + 1
    rng = drawing.generator(seed, stream)
    if kind in hard.DRAWN and mathematics.edges is not None:
        drawn = mathematics.edges(case, kind, rng)
    else:
        drawn = mathematics.inputs(case, rng)
    made = hard.change(mathematics, case, kind, drawn, [seed, stream])
    found = _rounded(made, case.dtype, own) | dict(weights)
    if case.mode != "forward":
        behind = mathematics.upstream(case, drawing.generator(seed, stream, UPSTREAM))
        if kind == hard.UPSTREAM:
            behind = hard.change_upstream(case, behind, [seed, stream])
        found |= modes.upstream(_rounded(behind, case.dtype, own))
    return found


def _rounded(arrays: dict[str, np.ndarray], dtype: str, own: Mapping[str, str]) -> dict[str, np.ndarray]:
    made = {n: np.asarray(a) for n, a in arrays.items()}
    dtypes = {n: own.get(n, dtype) if a.dtype.kind == "f" else "" for n, a in made.items()}
    return {n: drawing.cast(a, numpy_dtype(dtypes[n])) if dtypes[n] else a for n, a in made.items()}


def save(arrays: Sequence[np.ndarray], folder: Path, stem: str) -> list[Stored]:
    """Writes the arrays to `folder`, several at one time; the same array object is written once.

    Raises StorageError if the disk does not take them.
    """
    with contextlib.suppress(OSError):  # what is written next says so
        folder.mkdir(parents=True, exist_ok=True)  # an implementation may have taken it away
    first: dict[int, int] = {}
    for index, array in enumerate(arrays):
        first.setdefault(id(array), index)

    def write(index: int) -> Stored:
        array, name = arrays[index], f"{stem}{index}.npy"
        try:
            foreign = array.dtype.isbuiltin == 2  # bfloat16, or a float8, of which NumPy's files know the size alone
            np.save(folder / name, array.view(f"u{array.itemsize}") if foreign else array)
        except OSError as error:  # a full disk: NumPy says "1000 requested and 24 written", without an errno
            raise StorageError(f"{folder / name} cannot be written: {error}") from error
        return Stored(name, array.dtype.name)

    written = dict(zip(first, drawing.in_threads(write, first.values()), strict=True))
    return [written[id(array)] for array in arrays]


def save_sets(sets: Sequence[Mapping[str, np.ndarray]], folder: Path) -> list[list[Stored]]:
    """Writes the input sets and returns each one's files; a weight, which all share, is one file."""
    files = save([array for arrays in sets for array in arrays.values()], folder, "input")
    return [files[i : i + len(sets[0])] for i in range(0, len(files), len(sets[0]))]


def load(files: Sequence[Stored], folder: Path, mapped: bool = False) -> list[np.ndarray]:
    """Reads what `save` wrote, by all cores; a file that is named twice is read once and shared. With `mapped` only what is looked at."""
    mode: Literal["r"] | None = "r" if mapped else None

    def read(stored: Stored) -> np.ndarray:
        return np.asarray(np.load(folder / stored.file, mmap_mode=mode)).view(numpy_dtype(stored.dtype))

    named = list(dict.fromkeys(files))
    arrays = dict(zip(named, drawing.in_threads(read, named), strict=True))
    return [arrays[stored] for stored in files]
