"""Records as an Arrow table, whose schema follows from the fields of the dataclasses: for Parquet files and data frames.

table = arrow.table(store.read(folder, Record))      table.to_pandas(), polars.from_arrow(table)
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

PLAIN = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


def schema(kind: type) -> pa.Schema:
    """The schema of a dataclass: dataclasses become structs, tuples lists, mappings maps, and what may be of several types, such
    as a tunable, text; everything may be null."""
    return pa.schema([pa.field(name, _type(of)) for name, of in _fields(kind)])


def table(records: Iterable[Any]) -> pa.Table:
    """The records, all of one kind, one row each. Raises ValueError for none."""
    rows = list(records)
    if not rows:
        raise ValueError("no records: a table needs one at least")
    columns = schema(type(rows[0]))
    row_type = pa.struct(list(columns))
    return pa.Table.from_pylist([_fitted(msgspec.to_builtins(row), row_type) for row in rows], schema=columns)


def _fields(kind: type) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(kind)]


def _type(of: Any) -> pa.DataType:
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    if of in PLAIN:
        return PLAIN[of]
    if dataclasses.is_dataclass(of):
        return pa.struct([pa.field(name, _type(inner)) for name, inner in _fields(typing.cast(type, of))])
    if origin in (typing.Union, types.UnionType):
        inner = [a for a in arguments if a is not types.NoneType]
        return _type(inner[0]) if len(inner) == 1 else pa.string()  # Parquet has no unions
    if origin is tuple:
        return pa.list_(_type(arguments[0]))  # of one type throughout
    if origin is Mapping:
        return pa.map_(_type(arguments[0]), _type(arguments[1]))
    raise TypeError(f"no Arrow type for {of}")


def _fitted(value: Any, of: pa.DataType) -> Any:
    """The value as text where its column is of text."""
    if isinstance(value, dict):
        types_of = {key: of.item_type if pa.types.is_map(of) else of.field(key).type for key in value}
        return {key: _fitted(inner, types_of[key]) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_fitted(inner, of.value_type) for inner in value]
    return str(value) if value is not None and pa.types.is_string(of) else value
