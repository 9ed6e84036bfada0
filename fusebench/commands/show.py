"""`fusebench show`: earlier runs in one table, some of their cells, in an order, beside a baseline, or in a file."""

from __future__ import annotations

import collections
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from rich.markup import escape

from fusebench.cases import positive
from fusebench.commands import runs
from fusebench.comparison import verdicts
from fusebench.comparison.verdicts import Outcome
from fusebench.contract import STATUSES
from fusebench.errors import UsageError
from fusebench.folder import load
from fusebench.records import query, rows, store
from fusebench.records.record import BASELINE
from fusebench.report import LEAST_OF_TIMES, coloured, mark
from fusebench.terminal import console, counted, print_table
from fusebench.timing.summary import percent, seconds, significant

LIMIT = 500  # rows of a table, unless more are asked for
KEYS = ("out", "baseline", "sort", "limit")
HELP = f"""usage: fusebench show [RUN …] [KEY=VALUE …]

Earlier runs in one table. RUN is a run's folder, that of a sweep, or a name under results/; without one the latest.

  baseline=RUN          the time of the same cells in an earlier run, and the change with its 95 % interval
  sort=time_s           by a column, or several; sort=-tflops has the largest first
  out=FILE              writes all columns to FILE: .csv, .json, .parquet, or .md for the table as it is shown
  limit={LIMIT}             rows that are printed at most
  kernel=soft*          only these rows; any column, names and patterns: implementation=[all,~cuda] status=ok shape.M=1024

columns: {", ".join(rows.COLUMNS)}, speedup, shape.DIM, option.NAME, config.NAME"""
COMMIT = re.compile(r"\b([0-9a-f]{10})[0-9a-f]{30}\b")  # as much of it as a run says
# What is said above the table where it is the same in all rows, else a column: the heading, the column
IDENTITY = {"run": "run", "kernel": "kernel", "case": "case", "inputs": "inputs", "seed": "seed", "device": "device", "regime": "regime", "cache": "caches"}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Prints the table, or writes it. Raises UsageError."""
    asked = runs.parse(arguments, KEYS)
    limit = positive("limit", asked.keys.get("limit", LIMIT))
    folders = runs.find(asked.runs)
    kinds = {runs.kind(folder) for folder in folders.values()}
    if len(kinds) == 1 and (kind := min(kinds)) in runs.WITHOUT_ROWS:
        if asked.keys or asked.columns:
            raise UsageError(f"{min(folders)} is a run of {kind}, which is shown as it is: leave out all keys")
        _show_whole(kind, list(folders.values()))
        return 0
    table = asked.table()
    if "baseline" in asked.keys:
        table = query.beside(table, rows.read(runs.find([asked.keys["baseline"]])))
    table = query.sort(table, runs.words(asked.keys["sort"]) if "sort" in asked.keys else [])
    if "out" in asked.keys:
        write(table, Path(asked.keys["out"]))
        return 0
    show(table, limit)
    for folder in folders.values():
        kind, said = runs.kind(folder), ""
        if kind == "tune":
            said = f"each config a cell: fusebench tune {shlex.quote(f'resume={folder}')} shows what it kept"
        elif kind in runs.WITHOUT_ROWS:
            said = f"left out here: fusebench show {shlex.quote(str(folder))} shows it"
        if said:
            console().print(f"{folder} is a run of {kind}, {said}", highlight=False, soft_wrap=True, markup=False)
    return 0


def _show_whole(kind: str, folders: Sequence[Path]) -> None:
    """Runs whose records are no cells with figures, as their own command shows them."""
    if kind == "compare":
        show_comparisons(folders)
        return
    for folder in folders:
        on = "" if kind == "profile" else f": fusebench {kind} {shlex.quote(f'resume={folder}')} goes on with it"
        console().print(f"{folder} is a run of {kind}{on}", highlight=False, soft_wrap=True, markup=False)
        if kind == "profile":  # imported here: other commands show tables too, and have no use for these
            from fusebench.profiling import table as profiled
            from fusebench.profiling.run import Profile

            profiles = store.latest(folder, Profile)
            profiled.show(profiles, profiles[0].record.device.type if profiles else "")
        else:
            from fusebench.sanitizer import table as sanitized
            from fusebench.sanitizer.check import Check

            checks = store.latest(folder, Check)
            sanitized.show(checks, list(dict.fromkeys(c.tool for c in checks)))


def show_comparisons(folders: Sequence[Path]) -> None:
    """Those of the same two sides in one table, with what the sides are."""
    together: dict[tuple[str, ...], list[Outcome]] = {}
    for run in folders:
        sides = (COMMIT.sub(r"\1", str(side)) for side in load(run / "compare.yaml").get("sides", ()))
        said = tuple(f"{name}  {text}" for name, text in zip("AB", sides, strict=False))
        together.setdefault(said, []).extend(store.read(run, Outcome, verdicts.FILE))
    for said, outcomes in together.items():
        verdicts.show(outcomes, said)


def show_sweep(folders: Sequence[Path]) -> None:
    """The jobs of a sweep in one table."""
    names = {folder.name: folder for folder in folders}
    console().print(f"\nall {len(folders)} jobs", style="bold", highlight=False)
    show(query.sort(rows.read(names if len(names) == len(folders) else {str(f): f for f in folders}), []), LIMIT)


def show_beside(folder: Path, baseline: str) -> None:
    """A run beside an earlier one. Raises UsageError where they have no cell in common."""
    table = query.beside(rows.read({folder.name: folder}), rows.read(runs.find([baseline], folder)))
    console().print(f"\nbeside {escape(baseline)}", style="bold", highlight=False)
    show(query.sort(table, []), LIMIT)


def show(table: pa.Table, limit: int = LIMIT) -> None:
    """Prints what the rows have in common, the table of those with figures, why the others have none, and how many there are."""
    out = console()
    same = [f"{table[name][0]}" for name in _same(table) if name not in ("inputs", "seed", "regime", "cache")]
    same += [f"{table['inputs'][0]} inputs"] if "inputs" in _same(table) and str(table["inputs"][0]) != "plain" else []
    if table.num_rows:
        out.print(f"\n[bold]{escape('  '.join(same))}[/]" if same else "", highlight=False)
    figures = table["time_s"] if table["time_s"].null_count < table.num_rows else table["error_budget"]
    shown, others = table.filter(figures.is_valid()), table.filter(figures.is_null())
    if shown.num_rows:
        left, right, cells = _texts(shown.slice(0, limit), _varying(table))
        escaped = [[escape(cell) for cell in row] for row in cells]
        if "status" in left:
            at = left.index("status")
            for row in escaped:
                row[at] = coloured(row[at])
        print_table(
            out,
            left,
            right,
            escaped,
            ("regime", "caches", *LEAST_OF_TIMES, "baseline", f"× {BASELINE}", "error/budget", "±"),
        )
    if any(map(mark, rows.values(shown["uncertainty"]), rows.values(shown["target_missed"]))):
        out.print(
            "! the median is not known as well as was asked for: a larger time_s takes more samples", highlight=False
        )
    if shown.num_rows > limit:
        out.print(
            f"{limit} of {shown.num_rows} rows: limit={shown.num_rows} prints all, out=FILE.csv writes them",
            highlight=False,
        )
    _print_reasons(others)
    if "change" in table.column_names and table["change"].null_count < table.num_rows:
        out.print(
            "the interval follows from the samples of these two runs: what differs from process to process is not in it, which "
            "fusebench compare measures",
            highlight=False,
        )
    counts = collections.Counter(rows.values(table["status"]))
    said = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    out.print(f"{counted(table.num_rows, 'cell')}: {said or 'none'}", highlight=False)


def write(table: pa.Table, file: Path) -> None:
    """Writes all rows, as the ending says. Raises UsageError for another ending, and for a file that cannot be written."""
    writers: dict[str, Callable[[pa.Table, Path], None]] = {
        ".csv": lambda rows, to: pyarrow.csv.write_csv(_plain(rows), str(to)),
        ".json": _write_json,
        ".md": _write_markdown,
        ".parquet": lambda rows, to: pyarrow.parquet.write_table(rows, str(to)),
    }
    if file.suffix not in writers:
        raise UsageError(f"out={file}: expected a file that ends in {', '.join(writers)}")
    try:
        writers[file.suffix](table, file)
    except OSError as error:
        raise UsageError(f"out={file} cannot be written: {error.strerror or error}") from error
    print(f"{counted(table.num_rows, 'row')}: {file}")


def _plain(table: pa.Table) -> pa.Table:
    """The table with text where it has dictionaries of text."""
    fields = [pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in table.schema]
    return table.cast(pa.schema(fields))


def _write_json(table: pa.Table, file: Path) -> None:
    with file.open("w", encoding="utf-8") as to:
        separator = "[\n"
        for batch in _plain(table).to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                to.write(separator + json.dumps(row, ensure_ascii=False))
                separator = ",\n"
        to.write("\n]\n" if separator == ",\n" else "[]\n")


def _write_markdown(table: pa.Table, file: Path) -> None:
    left, right, cells = _texts(table, ("kernel", "case", *_varying(table)))
    lines = [[*left, *right], ["---"] * len(left) + ["---:"] * len(right), *cells]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    file.write_text(text + "\n", encoding="utf-8")


def _varying(table: pa.Table) -> list[str]:
    return [name for name, count in _different(table).items() if count > 1]


def _same(table: pa.Table) -> list[str]:
    """What identifies a row and is the same in all of them, but for those that have none of it."""
    return [name for name, count in _different(table).items() if count == 1]


def _different(table: pa.Table) -> dict[str, int]:
    """How many different values of it there are, of each column that identifies a row."""
    return {name: len(table[name].unique().drop_null()) for name in IDENTITY}


def _texts(table: pa.Table, identity: Sequence[str]) -> tuple[list[str], list[str], list[list[str]]]:
    """The headings over names and over figures, and the cells of the rows; a column without any figure is left out."""
    found = table.to_pylist()
    names = [name for name in IDENTITY if name in identity]
    left = {IDENTITY[name]: [_text(row[name]) for row in found] for name in names}
    left["implementation"] = [_label(row) for row in found]
    if {row["status"] for row in found} != {"ok"}:
        left["status"] = [row["status"] for row in found]
    figures = [_figures(row) for row in found]
    headings = [heading for heading in (figures[0] if figures else ()) if any(row[heading] for row in figures)]
    columns = [*left.values(), *([row[heading] for row in figures] for heading in headings)]
    return list(left), headings, [list(row) for row in zip(*columns, strict=True)]


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['label']} ({row['computes'].replace('_', ' ')} alone)" if row["computes"] else str(row["label"])


def _figures(row: Mapping[str, Any]) -> dict[str, str]:
    missed = mark(row["uncertainty"], row["target_missed"])
    texts = {
        "time": _text(row["time_s"], seconds),
        "±": _text(row["uncertainty"], lambda share: f"{percent(share)}{missed}"),
        "baseline": _text(row.get("baseline_s"), seconds),
        "change": _text(row.get("change"), lambda share: f"{share:+.1%}"),
        "95 % interval": _text(row.get("change_low"), lambda low: f"{low:+.1%} … {row['change_high']:+.1%}"),
        "host": _text(row["host_s"], seconds),
        "launches": _text(row["launches"]),
        "TFLOP/s": _text(row["tflops"], significant),
        "GB/s": _text(row["gbps"], significant),
        "best": _text(row["best_s"], seconds),
        "yardstick": _text(row["yardstick_share"], lambda share: f"{share:.0%}"),
        f"× {BASELINE}": _text(row["speedup"], lambda times: f"{times:.2f}"),
        "error/budget": _text(row["error_budget"], lambda ratio: f"{ratio:.2g}"),
    }
    return texts


def _text(value: Any, write: Callable[[Any], str] = str) -> str:
    return "" if value is None else write(value)


def _print_reasons(table: pa.Table) -> None:
    """The cells without figures: those with one status and reason in one line."""
    together: dict[tuple[str, str], collections.Counter[str]] = {}
    columns = [rows.values(table[name]) for name in ("status", "reason", "label")]
    for status, reason, label in zip(*columns, strict=True):
        together.setdefault((status, reason or ""), collections.Counter())[label] += 1
    for (status, reason), labels in together.items():
        said = ", ".join(f"{label} ({count} cells)" if count > 1 else label for label, count in labels.items())
        console().print(f"{status}  {reason}  {said}", highlight=False, markup=False)
