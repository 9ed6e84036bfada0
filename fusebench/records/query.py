"""What is asked of the rows of records (rows.py): some of them, in an order, beside those of an earlier run. Pure functions of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fusebench import patterns
from fusebench.contract import STATUSES
from fusebench.errors import UsageError, unknown
from fusebench.records import rows

ORDER = ("kernel", "case", "inputs", "seed", "label", "run")  # of rows, unless another is asked for
SAME = ("id", "regime", "cache")  # what a row and that of the baseline have in common
TIMES = ("time_s", "low_s", "high_s")


def choose(table: pa.Table, asked: Mapping[str, Sequence[str]]) -> pa.Table:
    """The rows whose columns have the values asked for: names and patterns, of numbers one or several. `implementation=triton:row`
    names a variant too, `case=batch` is `batch` in every dtype. Raises UsageError for a column or value that there is not."""
    for key, words in asked.items():
        if key not in table.column_names:
            raise unknown("column", key, table.column_names)
        column = table[key]
        if key == "implementation":
            column = pc.binary_join_element_wise(_text(column), _text(table["variant"]), ":")
            words = _with_variants(words, pc.unique(_text(table["implementation"])).to_pylist())
        elif key == "case" and not any("/" in word for word in words):
            column = pc.list_element(pc.split_pattern(_text(column), "/", max_splits=1), 0)
        column = _text(column)
        # a run in which nothing is wrong has no rows that are: that is an answer
        known = STATUSES if key == "status" else [v for v in pc.unique(column).to_pylist() if v is not None]
        table = table.filter(pc.is_in(column, value_set=pa.array(patterns.choose(key, words, known), pa.string())))
    return table


def sort(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows by these columns, by one with `-` in front from the largest; without any, those of a case together, in the order
    in which things first appear. What has no value comes last."""
    for key in keys:
        if key.removeprefix("-") not in table.column_names:
            raise unknown("column", key.removeprefix("-"), table.column_names)
    columns: dict[str, tuple[pa.ChunkedArray, str]] = {}
    for number, key in enumerate(keys or ORDER):
        column, order = table[key.removeprefix("-")], "descending" if key[0] == "-" else "ascending"
        if not keys:
            column = _ranks(column)
        elif pa.types.is_dictionary(column.type):
            column = _text(column)
        columns[str(number)] = column, order
    by = pa.table({name: column for name, (column, _) in columns.items()})
    chosen = [(name, order, "at_end") for name, (_, order) in columns.items()]
    try:
        indices = pc.sort_indices(by, sort_keys=chosen)
    except (TypeError, ValueError):  # before pyarrow 24 the place of nulls was one for all keys
        indices = pc.sort_indices(by, sort_keys=[key[:2] for key in chosen], null_placement="at_end")
    return table.take(indices)


def beside(table: pa.Table, baseline: pa.Table) -> pa.Table:
    """The rows with the time of the same cell in the baseline, and the change: 0.1 is 10 % slower. `change_low` and `change_high` are
    its 95 % interval, from those of the two medians as independent ones; what differs from process to process is not in it.

    Raises UsageError where the baseline has none of these cells.
    """
    theirs = {key: place for place, key in enumerate(_keys(baseline))}
    places = np.array([theirs.get(key, -1) for key in _keys(table)])
    if not (places >= 0).any():
        raise UsageError("the baseline has none of these cells, measured in the same regime")
    now = [table[name].to_numpy() for name in TIMES]
    then = [np.where(places >= 0, baseline[name].to_numpy()[places], np.nan) for name in TIMES]
    centre = np.log(now[0] / then[0])
    half = np.hypot(*(np.log(high / low) / 2 for _, low, high in (now, then)))
    added = {"baseline_s": then[0], "change": np.expm1(centre)}
    added |= {"change_low": np.expm1(centre - half), "change_high": np.expm1(centre + half)}
    for name, column in added.items():
        table = table.append_column(name, pa.array(column, pa.float64(), from_pandas=True))
    return table


def _with_variants(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """The words with all variants where they name none: `triton` is `triton:*`."""
    found = []
    for word in words:
        sign, bare = ("~", word[1:]) if word[:1] == "~" else ("", word)
        whole = ":" in bare or bare == "all"
        found += [word] if whole else [f"{sign}{n}:*" for n in patterns.matching("implementation", bare, names)]
    return found


def _keys(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(rows.values(table[name]) for name in SAME), strict=True))


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _ranks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """For each value the number of values that appeared before it did."""
    found = column.cast(pa.string()).combine_chunks().dictionary_encode()
    return (found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found).indices
