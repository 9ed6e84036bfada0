"""What `show` and `plot` share: which runs their words name, and which keys choose among the rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from fusebench.errors import UsageError, unknown
from fusebench.folder import RESULTS
from fusebench.records import query, rows
from fusebench.records.store import FILE

# of commands that keep runs; those without rows have records that are no cells with figures, for which `show` has tables of their own
WITHOUT_ROWS = ("compare", "sanitize", "profile")
COMMANDS = ("bench", "parity", "tune", *WITHOUT_ROWS)


@dataclass(frozen=True)
class Words:
    """The words of a command: the runs that are named, the command's own keys, and those that choose rows by a column."""

    runs: Sequence[str]
    keys: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def table(self) -> pa.Table:
        """The rows that are asked for. Raises UsageError where there are none."""
        folders = find(self.runs)
        having = {name: folder for name, folder in folders.items() if kind(folder) not in WITHOUT_ROWS}
        if not having:
            first = next(iter(folders.values()))
            raise UsageError(
                f"{first} is a run of {kind(first)}, which has no rows of cells: fusebench show {first} shows it"
            )
        found = rows.read(having)
        return query.choose(found, {key: words for key, words in self.columns.items() if words})


def parse(arguments: Iterable[str], known: Iterable[str]) -> Words:
    """Reads the words of a command with these keys. Raises UsageError for a flag and for a key that is neither known nor a column."""
    runs, keys, columns = [], {}, {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument.startswith("-"):
            raise UsageError(f"unexpected {argument!r}: expected a run, or KEY=VALUE; --help shows the keys")
        if not equals or "/" in key:
            runs.append(argument)
        elif key in known:
            keys[key] = value
        elif key in rows.COLUMNS or key.startswith(("shape.", "option.", "config.")):
            columns[key] = words(value)
        else:
            raise unknown("key", key, [*known, *rows.COLUMNS, "shape.DIM", "option.NAME", "config.NAME"])
        if equals and not value:
            raise UsageError(f"{argument}: expected a value behind =")
    return Words(runs, keys, columns)


def words(value: str) -> list[str]:
    """`a`, `a,b` or `[a,b]` as a list."""
    return [word.strip().strip("'\"") for word in re.sub(r"^\[(.*)\]$", r"\1", value).split(",")]


def find(named: Sequence[str], beside: Path | None = None) -> dict[str, Path]:
    """The folders of the runs that are named, by a name that tells them apart: each a run, or what holds several, such as that of a
    sweep; a name under results/, or `latest`, which also stands for none at all, and where it is to stand `beside` a run is neither
    that nor its sweep. Raises UsageError for what is no run."""
    found: dict[str, Path] = {}
    for word in named or ["latest"]:
        folder = _folder(word, beside)
        inside = sorted((file.parent for file in folder.glob(f"**/{FILE}")), key=order)
        if not inside:
            if own := kind(folder):
                on = "" if own == "profile" else f": fusebench {own} {shlex.quote(f'resume={word}')} goes on with it"
                raise UsageError(f"{word} is a run of {own} without a record{on}")
            if any(folder.glob("*/*/*/*.cubin")):
                raise UsageError(
                    f"{word} has what inspect wrote, a file a stage; fusebench inspect stage=sass prints one"
                )
            have = sorted({file.relative_to(RESULTS).parts[0] for file in RESULTS.glob(f"**/{FILE}")})[-5:]
            raise UsageError(
                f"{word}: no run with records there; the latest in {RESULTS}/ are: {', '.join(have) or 'none'}"
            )
        several = len(named) > 1
        for run in inside:
            place = run.relative_to(folder) if run != folder else Path()
            name = str(Path(folder.name) / place) if several or not place.parts else str(place)
            found[name if name not in found or found[name] == run else str(run)] = run
    return found


def kind(folder: Path) -> str:
    """The command whose run lies in the folder, or ""."""
    return next((command for command in COMMANDS if (folder / f"{command}.yaml").exists()), "")


def _folder(word: str, beside: Path | None) -> Path:
    if word == "latest":
        runs = {
            RESULTS / file.relative_to(RESULTS).parts[0]: file.stat().st_mtime for file in RESULTS.glob(f"**/{FILE}")
        }
        runs = {run: at for run, at in runs.items() if not (beside and beside.resolve().is_relative_to(run.resolve()))}
        return max(runs, key=lambda run: runs[run], default=RESULTS / word)
    path = Path(word)
    if path.name == FILE:
        path = path.parent
    return path.resolve() if path.is_dir() else RESULTS / word


def order(folder: Path) -> list[tuple[int, str]]:
    """The jobs of a sweep are numbered."""
    return [(int(part) if part.isdecimal() else -1, part) for part in folder.parts]
