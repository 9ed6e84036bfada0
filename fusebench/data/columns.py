"""A column of a Criteo file as a NumPy array: missing values filled in, every value checked, the first bad one named by its row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fusebench.data.schema import LAST_ID
from fusebench.errors import UsageError

HEX = 8  # digits of an id that is text, as in Criteo's own files
NO_DIGIT = 255
DIGITS = np.full(256, NO_DIGIT, np.uint8)  # from a character's code to the digit's value
DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
DIGITS[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


@dataclass(frozen=True)
class Column:
    """Where a column stands, for what is said of it."""

    file: Path
    name: str

    def check_type(self, kind: pa.DataType, ids: bool) -> None:
        """Raises UsageError for a type that is never right: before any row is read."""
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        fits = pa.types.is_integer(kind) or pa.types.is_null(kind)
        if ids:
            fits = fits or pa.types.is_float64(kind) or _is_text(kind)
            expected = f"integers, float64 (as pandas writes integers with missing values) or text of {HEX} hex digits"
        else:
            fits = fits or pa.types.is_floating(kind)
            expected = "integers or floats"
        if not fits:
            raise UsageError(f"{self.file}: column {self.name} has the type {kind}: expected {expected}")

    def ids(self, values: pa.Array, row: int, unknown: int) -> np.ndarray:
        """The ids (n,), integers or float64; `unknown` where one is missing. `row` is the first one's number in the file.

        Raises UsageError for a value outside 0 … 2³² - 1, or one that is no id.
        """
        if pa.types.is_null(values.type):
            return np.full(len(values), unknown, np.int64)
        if _is_text(values.type):
            return self._from_text(values, row, unknown)
        if pa.types.is_floating(values.type):
            found = _filled(values, unknown)
            found = np.where(np.isnan(found), unknown, found)
            whole = np.isfinite(found) & (np.floor(found) == found)
            self._check(whole & (found >= 0) & (found <= LAST_ID), found, row, _ID)
            return found
        found = _filled(values, unknown)
        if found.dtype.itemsize > 4 or found.dtype.kind == "i":
            self._check((found >= 0) & (found <= LAST_ID), found, row, _ID)
        return found

    def dense(self, values: pa.Array, row: int) -> np.ndarray:
        """The counts (n,), integers or floats, 0 where one is missing. Raises UsageError for one that float32 does not hold."""
        if pa.types.is_null(values.type):
            return np.zeros(len(values), np.float32)
        found = _filled(values, 0)
        if found.dtype.kind != "f":
            return found
        found = np.where(np.isnan(found), 0, found)
        self._check(np.abs(found) <= np.finfo(np.float32).max, found, row, "no finite float32: expected a number")
        return found

    def labels(self, values: pa.Array, row: int) -> np.ndarray:
        """The labels (n,), of any number's type. Raises UsageError for one that is neither 0 nor 1."""
        if values.null_count:
            at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._bad(row + at, "missing", _LABEL)
        found = values.to_numpy(zero_copy_only=False)
        self._check((found == 0) | (found == 1), found, row, _LABEL)
        return found

    def _from_text(self, values: pa.Array, row: int, unknown: int) -> np.ndarray:
        """The ids of hexadecimal text, such as 68fd1e64; `unknown` for null and the empty text. Each text is read once."""
        encoded = values.dictionary_encode()
        each = np.append(_parsed(encoded.dictionary, unknown), unknown)
        found = each[_filled(encoded.indices, len(each) - 1)]
        if (wrong := np.flatnonzero(found < 0)).size:
            raise self._bad(row + int(wrong[0]), values[int(wrong[0])].as_py(), _ID_TEXT)
        return found

    def _check(self, good: np.ndarray, found: np.ndarray, row: int, expected: str) -> None:
        if not good.all():
            at = int(np.flatnonzero(~good)[0])
            raise self._bad(row + at, found[at].item(), expected)

    def _bad(self, row: int, value: Any, expected: str) -> UsageError:
        shown = value if value == "missing" else repr(value)
        return UsageError(f"{self.file}: column {self.name}, row {row} (of 0 …): {shown} is {expected}")


_ID = f"no id: expected a whole number, 0 … {LAST_ID}, or null"
_ID_TEXT = f"no id: expected {HEX} hexadecimal digits, or null"
_LABEL = "no label: expected 0 or 1"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _filled(values: pa.Array, fill: int) -> np.ndarray:
    """The numbers with `fill` for null, in a type that has room for it. Arrow's own fill_null takes half as long again."""
    if not values.null_count:
        return values.to_numpy()
    here = slice(values.offset, values.offset + len(values))
    bitmap, numbers = (np.frombuffer(buffer, np.uint8) for buffer in values.buffers())
    valid = np.unpackbits(bitmap, count=here.stop, bitorder="little")[here].view(bool)
    found = numbers.view(values.type.to_pandas_dtype())[here]
    found = found.astype(np.int64) if found.dtype.itemsize < 4 and found.dtype.kind != "f" else found
    return np.where(valid, found, found.dtype.type(fill))


def _parsed(texts: pa.Array, unknown: int) -> np.ndarray:
    """The ids (n,) int64 of texts that are not null; `unknown` for an empty one, -1 for one that is no id."""
    texts = texts.cast(pa.large_string())
    _, offsets, characters = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(starts)
    right = np.flatnonzero(lengths == HEX)
    digits = DIGITS[np.frombuffer(characters or b"", np.uint8)[starts[right, None] + np.arange(HEX)]]
    found = np.where(lengths == 0, unknown, -1)
    ids = (digits[:, 0::2] << 4 | digits[:, 1::2]).view(">u4")[:, 0].astype(np.int64)
    found[right] = np.where((digits == NO_DIGIT).any(axis=1), -1, ids)
    return found
