"""Batches of a Criteo file in parquet, as NumPy arrays that Torch and JAX take without a copy.

for batch in reading.open_file(Path("criteo")).batches(2048):
    torch.from_numpy(batch.dense), torch.from_dlpack(batch.ids), jax.numpy.from_dlpack(batch.labels)

JAX holds ids in 64 bits only with jax_enable_x64; without it, it makes a narrower copy that ids from 2³¹ on do not fit into.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fusebench.data.columns import Column
from fusebench.data.schema import (
    DATA_FILE,
    DENSE,
    METADATA_FILE,
    SPARSE,
    Columns,
    Feature,
    find_columns,
    read_metadata,
)
from fusebench.errors import UsageError

# Rows that are decoded together, of which batches are slices: a call of the reader for each small batch would cost more than the batch,
# and the arrays of more rows lie outside of the caches while their columns are written into them.
CHUNK = 2**14
ALIGNMENT = 64  # bytes: JAX copies what is aligned to less
ROWS_ALIGNED = 16  # after so many rows every array is aligned again: 16 labels are 64 bytes, 16 rows of counts 832


@dataclass(frozen=True)
class Batch:
    """M rows, contiguous, aligned to 64 bytes and nobody else's: dense (M, 13) float32, ids (M, 26) int64, labels (M, 1) float32."""

    dense: np.ndarray
    ids: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class DataFile:
    """A file whose columns are known to be there and of a right type. `features` is () where no metadata is beside it."""

    file: Path
    rows: int
    columns: Columns
    features: tuple[Feature, ...]
    unknown: tuple[int, ...]  # the id of each column that stands for a missing one

    def batches(self, size: int, log1p: bool = False) -> Iterator[Batch]:
        """All rows in the file's order, `size` at a time, fewer in the last batch. Missing counts are 0, missing ids unknown ones.

        With `log1p` each count x is log(1 + max(x, 0)). Raises UsageError with the file, the column and the row for a value that
        cannot be, and ValueError for a size below 1.
        """
        if size < 1:
            raise ValueError(f"a batch of {size} rows: expected 1 at least")
        size, row = min(size, self.rows), 0
        for table in self._tables(max(1, CHUNK // size) * size):
            yield from self._convert(table, row, size, log1p)
            row += table.num_rows

    def _tables(self, rows: int) -> Iterator[pa.Table]:
        """The file in tables of so many rows, whatever its row groups are; the last may have fewer."""
        read, pending = 0, None
        try:
            with pq.ParquetFile(self.file, pre_buffer=False) as parquet:  # what it buffers it keeps to the end
                for part in parquet.iter_batches(batch_size=rows, columns=self.columns.all()):
                    read += part.num_rows
                    table = pa.Table.from_batches([part])
                    pending = table if pending is None else pa.concat_tables([pending, table])
                    while pending.num_rows >= rows:
                        yield pending.slice(0, rows)
                        pending = pending.slice(rows)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{self.file} cannot be read beyond row {read}: {error}") from error
        if pending is not None and pending.num_rows:
            yield pending

    def _convert(self, table: pa.Table, row: int, size: int, log1p: bool) -> Iterator[Batch]:
        """The batches of a table whose first row is number `row` of the file."""
        rows = table.num_rows
        room = -(-size // ROWS_ALIGNED) * ROWS_ALIGNED  # from the beginning of a batch to that of the next
        count = -(-rows // size)
        dense = _aligned((count, room, DENSE), np.float32)
        ids = _aligned((count, room, SPARSE), np.int64)
        labels = _aligned((count, room, 1), np.float32)
        # a batch that is longer than a chunk is filled a chunk at a time
        for begin in range(0, rows, CHUNK) if size > CHUNK else (0,):
            part = table.slice(begin, CHUNK) if size > CHUNK else table
            at, values = self._column(part, self.columns.label)
            _spread(labels[:, begin:, 0], at.labels(values, row + begin), size)
            for n, name in enumerate(self.columns.dense):
                at, values = self._column(part, name)
                _spread(dense[:, begin:, n], at.dense(values, row + begin), size)
            for n, name in enumerate(self.columns.sparse):
                at, values = self._column(part, name)
                _spread(ids[:, begin:, n], at.ids(values, row + begin, self.unknown[n]), size)
        if log1p:
            np.log1p(np.maximum(dense, 0, out=dense), out=dense)
        lengths = [min(size, rows - n * size) for n in range(count)]
        for n, m in enumerate(lengths):
            yield Batch(dense[n, :m], ids[n, :m], labels[n, :m])

    def _column(self, table: pa.Table, name: str) -> tuple[Column, pa.Array]:
        """The values of a column in one piece."""
        chunks = table.column(name).chunks
        values = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        encoded = pa.types.is_dictionary(values.type)
        return Column(self.file, name), values.dictionary_decode() if encoded else values


def open_file(path: Path, metadata: Path | None = None) -> DataFile:
    """The file, or the one that `fusebench data` wrote into a folder, with the metadata that is named or lies beside it.

    Raises UsageError where there is no such file, it is empty, no parquet, or lacks a column or has one of a wrong type.
    """
    file = path / DATA_FILE if path.is_dir() else path
    beside = file.parent / METADATA_FILE
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")
    if not file.stat().st_size:
        raise UsageError(f"{file} is empty: expected parquet")
    try:
        with pq.ParquetFile(file) as parquet:
            rows, schema = parquet.metadata.num_rows, parquet.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{file} cannot be read as parquet: {error}") from error
    columns = find_columns(file, schema.names)
    for name in columns.all():
        kind = schema.field(name).type
        if not (name == columns.label and pa.types.is_boolean(kind)):
            Column(file, name).check_type(kind, ids=name in columns.sparse)
    if not rows:
        raise UsageError(f"{file} has no rows: expected 1 at least")
    features = read_metadata(metadata or beside) if metadata or beside.is_file() else ()
    unknown = tuple(feature.unknown() for feature in features) or (0,) * SPARSE
    return DataFile(file, rows, columns, features, unknown)


def _spread(to: np.ndarray, values: np.ndarray, size: int) -> None:
    """Writes values (n,) to `to` (batches, room), `size` to a batch."""
    if whole := len(values) // size:
        to[:whole, :size] = values[: whole * size].reshape(whole, size)
    if rest := len(values) - whole * size:
        to[whole, :rest] = values[whole * size :]


def _aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Memory that begins at a multiple of 64 bytes. What lies between two batches is never read, but by `log1p`."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)
