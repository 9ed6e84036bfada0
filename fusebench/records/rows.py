"""Records of any number of runs as one flat Arrow table: a row a cell, with what tables and plots show and nothing else.

A record has all samples; of each line only what a row needs is decoded, so that a million records are read in well under a minute.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from fusebench.contract import PASSED
from fusebench.errors import UsageError
from fusebench.parity.verdict import Together
from fusebench.records.record import BASELINE, SCHEMA
from fusebench.records.store import FILE

BATCH = 20_000  # rows that are Python objects at a time


class _Case(msgspec.Struct):
    kernel: str
    sizes: dict[str, int]
    dtype: str
    precision: str
    options: dict[str, str]
    mode: str
    id: str


class _Cell(msgspec.Struct):
    case: _Case
    implementation: str
    variant: str
    seed: int
    inputs: str
    config: dict[str, Any]


class _Device(msgspec.Struct):
    type: str
    name: str


class _Environment(msgspec.Struct):
    device: _Device


class _Work(msgspec.Struct):
    flops: int | None
    moved_bytes: int | None


class _Build(msgspec.Struct):
    peak_memory_bytes: int | None = None
    saved_bytes: int | None = None


@dataclass(frozen=True)
class _Verdict(Together):
    ratio: float

    @property
    def ok(self) -> bool:
        """As a Verdict has it, whose ratio is infinite where it has a problem."""
        return self.ratio <= 1 and super().ok


class _Parity(msgspec.Struct):
    first: _Verdict | None = None
    repeated: _Verdict | None = None
    timed: _Verdict | None = None


class _Timing(msgspec.Struct):
    regime: str
    cache: str
    median: float
    interval: tuple[float, float] | None
    uncertainty: float | None
    target_missed: bool
    host_median: float | None
    launches: int | None


class _Yardsticks(msgspec.Struct):
    copy_gbps: float | None = None
    read_gbps: float | None = None
    matrix_tflops: float | None = None


class _Rates(msgspec.Struct):
    tflops: float | None
    gbps: float | None
    best_s: float | None
    yardstick_share: float | None
    yardsticks: _Yardsticks | None = None


class _Line(msgspec.Struct):
    """What a row takes of a record; the names are those of record.py."""

    id: str
    label: str
    cell: _Cell
    status: str
    environment: _Environment
    began: str
    reason: str | None
    computes: str
    work: _Work | None
    build: _Build | None
    parity: _Parity
    timing: _Timing | None
    rates: _Rates | None
    schema: object = None


NAME = pa.dictionary(pa.int32(), pa.string())  # few different ones
# Times in seconds, rates in TFLOP/s and GB/s; low_s and high_s are the 95 % interval of the median. `speedup` is over torch_eager
# in the same run, or in another job of its sweep.
COLUMNS: dict[str, pa.DataType] = {
    "run": NAME, "kernel": NAME, "case": NAME, "label": NAME, "implementation": NAME, "variant": NAME, "dtype": NAME, "precision": NAME,
    "mode": NAME, "inputs": NAME, "seed": pa.int64(), "status": NAME, "time_s": pa.float64(), "low_s": pa.float64(), "high_s": pa.float64(),
    "uncertainty": pa.float64(), "target_missed": pa.bool_(), "host_s": pa.float64(), "launches": pa.int64(), "regime": NAME, "cache": NAME,
    "tflops": pa.float64(), "gbps": pa.float64(), "best_s": pa.float64(), "yardstick_share": pa.float64(), "copy_gbps": pa.float64(),
    "read_gbps": pa.float64(), "matrix_tflops": pa.float64(), "error_budget": pa.float64(), "device": NAME, "computes": NAME,
    "flops": pa.float64(), "moved_bytes": pa.float64(), "saved_bytes": pa.int64(), "peak_bytes": pa.int64(), "reason": NAME, "began": pa.string(), "id": pa.string(),
}  # fmt: skip


def read(runs: Mapping[str, Path]) -> pa.Table:
    """The last record of each cell in each of the runs, by name with their folders: the COLUMNS, then `speedup`, `shape.M`,
    `option.w_layout`, `config.num_warps` and their like. Raises UsageError for a line that is no record."""
    tables = []
    for name, folder in runs.items():
        lines = _lines(folder / FILE)
        while batch := list(itertools.islice(lines, BATCH)):
            tables.append(_table(name, batch))
    found = pa.concat_tables(tables, promote_options="default") if tables else _table("", [])
    found = _last_of_each_cell(found).combine_chunks().unify_dictionaries()
    sweeps = {name: _sweep(folder) for name, folder in runs.items()}
    return found.add_column(found.column_names.index("id"), "speedup", _speedups(found, sweeps))


def _sweep(folder: Path) -> str:
    """The folder of the sweep that a run is a job of, or its own."""
    return str(folder.parent if any(folder.parent.glob("*.sweep.yaml")) else folder)


def _lines(path: Path) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line, strict=False)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # a run that was cut off
                    return
                try:
                    found = decoder.decode(line)
                    if found.schema != SCHEMA:
                        raise msgspec.ValidationError(f"the schema is {found.schema!r}, not {SCHEMA}")
                except (msgspec.MsgspecError, RecursionError) as error:
                    raise UsageError(f"{path} line {number} is no record: {' '.join(str(error).split())}") from error
                yield found
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _table(run: str, lines: Sequence[_Line]) -> pa.Table:
    rows = [_row(line) for line in lines]
    own = {name: _own_type(name) for row in rows for name in row[1]}
    columns = dict(zip(COLUMNS, zip(*(row[0] for row in rows), strict=True), strict=True)) if rows else {}
    columns |= {name: tuple(row[1].get(name) for row in rows) for name in own}
    known = COLUMNS | own
    arrays = [pa.array([run] * len(rows) if name == "run" else columns.get(name, ()), of) for name, of in known.items()]
    return pa.table(arrays, schema=pa.schema(known))


def _own_type(name: str) -> pa.DataType:
    return pa.int64() if name.startswith("shape.") else NAME


NO_TIMING: tuple[Any, ...] = (None,) * 9
NO_RATES: tuple[Any, ...] = (None,) * 7


def _row(line: _Line) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The values of COLUMNS, in their order, and the sizes, options and tunables by name."""
    cell, case, parity = line.cell, line.cell.case, line.parity
    verdicts = [verdict for verdict in (parity.first, parity.repeated, parity.timed) if verdict]
    if line.status not in (*PASSED, "implausible") and all(verdict.ok for verdict in verdicts):
        verdicts = []  # those of plain inputs, where hard ones were wrong
    errors = [verdict.ratio for verdict in verdicts]
    timing, rates, clock, rate = line.timing, line.rates, NO_TIMING, NO_RATES
    if timing and line.status == "ok":  # an implausible time is no time
        low, high = timing.interval or (None, None)
        clock = (timing.median, low, high, timing.uncertainty, timing.target_missed, timing.host_median, timing.launches, timing.regime, timing.cache)  # fmt: skip
    else:
        rates = None
    if rates:
        y = rates.yardsticks or _Yardsticks()
        rate = (rates.tflops or None, rates.gbps or None, rates.best_s, rates.yardstick_share, y.copy_gbps, y.read_gbps, y.matrix_tflops)  # fmt: skip
    return (
        "", case.kernel, case.id, line.label, cell.implementation, cell.variant, case.dtype, case.precision, case.mode, cell.inputs,
        cell.seed, line.status, *clock, *rate, max(errors, default=None), line.environment.device.name or line.environment.device.type,
        line.computes, line.work and line.work.flops, line.work and line.work.moved_bytes,
        line.build and line.build.saved_bytes, line.build and line.build.peak_memory_bytes, line.reason, line.began, line.id,
    ), {
        **{f"shape.{name}": size for name, size in case.sizes.items()},
        **{f"option.{name}": str(value) for name, value in case.options.items()},
        **{f"config.{name}": str(value) for name, value in cell.config.items()},
    }  # fmt: skip


def values(column: pa.ChunkedArray) -> list[Any]:
    """The column as Python objects, with None or NaN for null; many times as fast as to_pylist."""
    plain = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    found: list[Any] = plain.to_numpy().tolist()
    return found


def _last_of_each_cell(table: pa.Table) -> pa.Table:
    """Of a cell that ran again in a run the last record, in the place of the first."""
    ids = zip(values(table["run"]), values(table["id"]), strict=True)
    last = {name: number for number, name in enumerate(ids)}
    return table if len(last) == table.num_rows else table.take(list(last.values()))


def _speedups(table: pa.Table, sweeps: Mapping[str, str]) -> pa.Array:
    """How many times as fast as torch_eager each cell is, null where that has no time: in its run, or, where a sweep varies the
    implementation, in the one job of the sweep that has one."""
    same = ("kernel", "case", "inputs", "seed", "regime", "cache")
    keys = list(zip(*(values(table[name]) for name in same), strict=True))
    names, times = values(table["run"]), table["time_s"].to_numpy()
    found: dict[tuple[Any, ...], dict[str, float]] = {}  # the times by run, of several variants the first
    for place, implementation in enumerate(values(table["implementation"])):
        if implementation == BASELINE and times[place] > 0:
            runs = found.setdefault((sweeps[names[place]], *keys[place]), {})
            runs.setdefault(names[place], times[place])
    baselines = []
    for name, key in zip(names, keys, strict=True):
        runs = found.get((sweeps[name], *key), {})
        baselines.append(runs.get(name, min(runs.values()) if len(runs) == 1 else np.nan))
    return pa.array(np.array(baselines) / times, pa.float64(), from_pandas=True)
