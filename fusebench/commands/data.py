"""`fusebench data`: a synthetic data set in Criteo's schema, or all rows of a real one read and checked."""

from __future__ import annotations

import time
from pathlib import Path

from fusebench import report
from fusebench.data import reading, synthesis, writing
from fusebench.data.schema import DATA_FILE, METADATA_FILE
from fusebench.errors import UsageError, unknown
from fusebench.terminal import counted

CARDINALITY, MOST = 100_000, 10_000_000  # known values of the last id column
BATCH = 2048
DATA_SETS = ("criteo",)
KEYS = {"rows": "", "out": "", "seed": "0", "cardinality": str(CARDINALITY), "file": "", "metadata": "", "batch": str(BATCH)}  # fmt: skip
READING = ("file", "metadata", "batch")  # the others write
HELP = f"""usage: fusebench data criteo rows=N out=DIR [seed=0] [cardinality={CARDINALITY}]
       fusebench data criteo file=FILE [metadata=FILE] [batch={BATCH}]

Writes rows in the schema of Criteo's click logs, with a planted signal and long-tailed ids; or reads a file in that schema, a
real one as well, checks every value, and says how fast that was. docs/data.md has the schema and the signal.

  rows=1000000         how many rows are written
  out=DIR              the folder for {DATA_FILE} and {METADATA_FILE}; it is made if there is none
  seed=0               which rows: the same seed and rows give the same files; the signal is that of every seed
  cardinality={CARDINALITY}   known values of the last id column, {synthesis.LEAST} … {MOST}; the first has {synthesis.LEAST}
  file=FILE            a parquet file that is read, or a folder that this command has written
  metadata=FILE        its metadata, by default {METADATA_FILE} beside it, where it is there
  batch={BATCH}           rows of a batch that is read"""


def main(arguments: list[str]) -> int:
    """Prints what was written or read. Raises UsageError and StorageError."""
    keys = _keys(arguments)
    if "file" in keys:
        _read(keys)
    else:
        _write(keys)
    return 0


def _keys(arguments: list[str]) -> dict[str, str]:
    """The keys that are given. Raises UsageError for a wrong one, or those of writing and of reading together."""
    words = [a for a in arguments if "=" not in a]
    if len(words) != 1:
        raise UsageError(
            f"{' '.join(['data', *words])}: expected data criteo rows=N out=DIR, or data criteo file=FILE (--help says more)"
        )
    if words[0] not in DATA_SETS:
        raise unknown("data set", words[0], DATA_SETS)
    keys: dict[str, str] = {}
    for key, value in (a.split("=", 1) for a in arguments if "=" in a):
        if key not in KEYS:
            raise unknown("key", key, KEYS)
        if key in keys:
            raise UsageError(f"{key}= is there twice: {key}={keys[key]} and {key}={value}")
        if not value:
            raise UsageError(f"{key}= is empty: fusebench data --help says what it takes")
        keys[key] = value
    reads = [key for key in keys if key in READING]
    writes = [key for key in keys if key not in READING]
    if reads and writes:
        raise UsageError(f"{writes[0]}= writes a data set and {reads[0]}= reads one: leave out one of them")
    for key in ("file",) if reads else ("rows", "out"):
        if key not in keys:
            raise UsageError(f"{key}= is missing: expected data criteo rows=N out=DIR, or data criteo file=FILE")
    return keys


def _number(keys: dict[str, str], key: str, least: int, most: int | None = None) -> int:
    """The whole number of a key. Raises UsageError for anything else."""
    given = keys.get(key, KEYS[key])
    try:
        value = int(given)
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{key}={given}: expected a whole number {wanted}")
    return value


def _write(keys: dict[str, str]) -> None:
    rows, seed = _number(keys, "rows", 1), _number(keys, "seed", 0)
    cardinality = _number(keys, "cardinality", synthesis.LEAST, MOST)
    with report.progress() as bar:
        task = bar.add_task("rows", total=rows)
        signal = synthesis.plant(cardinality)
        written = writing.write(
            Path(keys["out"]), signal, rows, seed, lambda n: bar.update(task, description="rows", advance=n)
        )
    data, metadata = written.files
    sizes = [feature.cardinality for feature in signal.features]
    print(f"{data}: {rows} rows, {written.clicks / rows:.1%} clicks, {data.stat().st_size / 1e6:.4g} MB")
    print(f"{metadata}: {len(sizes)} id columns with {sizes[0]} … {sizes[-1]} known values")
    if written.auc == written.auc:  # NaN of rows that are all clicks, or none
        print(f"AUC of the planted signal, which no model passes: {written.auc:.3f}")


def _read(keys: dict[str, str]) -> None:
    size = _number(keys, "batch", 1)
    source = reading.open_file(Path(keys["file"]), Path(keys["metadata"]) if "metadata" in keys else None)
    clicks, count, begin, cpu = 0.0, 0, time.perf_counter(), time.process_time()
    with report.progress() as bar:
        task = bar.add_task("rows", total=source.rows)
        for batch in source.batches(size):
            clicks, count = clicks + float(batch.labels.sum()), count + 1
            bar.update(task, description="rows", advance=len(batch.labels))
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    beside = f"{len(source.features)} id columns have known values" if source.features else "no metadata beside it"
    print(f"{source.file}: {source.rows} rows, {clicks / source.rows:.1%} clicks; {beside}")
    print(
        f"read in {counted(count, 'batch')} of {size} in {took:.3g} s, {cpu:.3g} s of CPU time: {source.rows / took / 1e6:.3g} million rows/s"
    )
