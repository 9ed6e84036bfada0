"""Criteo's columns and the metadata beside them: a label, 13 counts, 26 hashed ids; for each id column its known values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusebench.errors import UsageError

DENSE, SPARSE = 13, 26  # columns of counts and of ids
LAST_ID = 2**32 - 1  # ids are 32-bit hashes
LABELS = ("labels", "label")
DENSE_PREFIXES = ("DENSE_", "int_")
SPARSE_PREFIXES = ("SPARSE_", "cat_")
DATA_FILE, METADATA_FILE = "criteo.parquet", "metadata.json"


@dataclass(frozen=True)
class Columns:
    """The names that one file has for the label, the counts and the ids."""

    label: str
    dense: tuple[str, ...]
    sparse: tuple[str, ...]

    def all(self) -> list[str]:
        return [self.label, *self.dense, *self.sparse]


@dataclass(frozen=True)
class Feature:
    """One id column. `known` (L,) int64: the values that have a row of the embedding table each, in its order."""

    cardinality: int
    known: np.ndarray

    def unknown(self) -> int:
        """The id that stands for a missing one: the least that is not known, 0 wherever 0 is no known value."""
        known = np.unique(self.known)
        gaps = np.flatnonzero(known != np.arange(len(known)))
        return int(gaps[0]) if len(gaps) else len(known)


def find_columns(file: Path, names: Sequence[str]) -> Columns:
    """The columns among the names of a file. Raises UsageError for one that is missing or there twice."""
    found = Columns(
        next((label for label in LABELS if label in names), LABELS[0]),
        _numbered(names, DENSE_PREFIXES, DENSE),
        _numbered(names, SPARSE_PREFIXES, SPARSE),
    )
    if missing := [name for name in found.all() if name not in names]:
        first = (
            f"column {missing[0]} is" if len(missing) == 1 else f"columns {missing[0]} and {len(missing) - 1} more are"
        )
        expected = f"labels, DENSE_0 … DENSE_{DENSE - 1} and SPARSE_0 … SPARSE_{SPARSE - 1}, or label, int_… and cat_…"
        raise UsageError(f"{file}: {first} missing: expected {expected}")
    if twice := [name for name in found.all() if names.count(name) > 1]:
        raise UsageError(f"{file}: column {twice[0]} is there {names.count(twice[0])} times: expected one")
    return found


def _numbered(names: Sequence[str], prefixes: Sequence[str], count: int) -> tuple[str, ...]:
    """The names with the prefix of which the file has most."""
    candidates = [tuple(f"{prefix}{n}" for n in range(count)) for prefix in prefixes]
    return max(candidates, key=lambda wanted: sum(name in names for name in wanted))


def read_metadata(file: Path) -> tuple[Feature, ...]:
    """The 26 features of `{"SPARSE_0": {"cardinality": n, "tokenizer_values": […]}, …}`. Raises UsageError, with the file and the
    feature, for anything else."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{file}: expected an object with SPARSE_0 … SPARSE_{SPARSE - 1}")
    features = []
    for name in _numbered(list(found), SPARSE_PREFIXES, SPARSE):
        if name not in found:
            raise UsageError(f"{file}: {name} is missing: expected SPARSE_0 … SPARSE_{SPARSE - 1}")
        features.append(_feature(f"{file}: {name}", found[name]))
    return tuple(features)


def _feature(where: str, entry: Any) -> Feature:
    """Raises UsageError for what is no feature."""
    if not isinstance(entry, dict) or not {"cardinality", "tokenizer_values"} <= set(entry):
        raise UsageError(f'{where}: expected {{"cardinality": n, "tokenizer_values": […]}}')
    cardinality, values = entry["cardinality"], entry["tokenizer_values"]
    if type(cardinality) is not int or not 1 <= cardinality <= LAST_ID + 1:
        raise UsageError(f"{where}: cardinality is {cardinality!r}: expected a whole number, 1 … {LAST_ID + 1}")
    if not isinstance(values, list):
        raise UsageError(f"{where}: tokenizer_values is no list")
    for n, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= LAST_ID:
            raise UsageError(f"{where}: value {n} of tokenizer_values is {value!r}: expected an id, 0 … {LAST_ID}")
    return Feature(cardinality, np.array(values, np.int64))


def metadata_json(features: Sequence[Feature]) -> str:
    """The features as `read_metadata` reads them."""
    entries = {
        f"SPARSE_{n}": {"cardinality": feature.cardinality, "tokenizer_values": feature.known.tolist()}
        for n, feature in enumerate(features)
    }
    return json.dumps(entries)
