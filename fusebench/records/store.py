"""Records on disk: one complete JSON object a line, written and flushed as each cell ends.

JSON has no word for NaN and the infinities: they are written as their names, and read back as numbers.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import msgspec

from fusebench.errors import StorageError, UsageError
from fusebench.records.record import SCHEMA

FILE = "records.jsonl"
TAIL = 2**16  # bytes that are looked at from the end of a file to find its last complete line

T = TypeVar("T")


class Identified(Protocol):
    @property
    def id(self) -> str: ...


I = TypeVar("I", bound=Identified)


def append(folder: Path, record: Any, name: str = FILE) -> None:
    """Adds one record, or another dataclass, to the file of that name; a line that an interrupted run left unfinished is cut
    off first.

    Raises StorageError if the disk does not take it; what came onto the disk of it is taken away again.
    """
    line = encode(record) + b"\n"
    path = folder / name
    try:
        with path.open("ab+", buffering=0) as file:
            size = _drop_partial_line(file)
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


def encode(value: Any) -> bytes:
    """A dataclass as one line of JSON."""
    return json.dumps(_plain(msgspec.to_builtins(value)), allow_nan=False, ensure_ascii=False).encode()


def read(folder: Path, kind: type[T], name: str = FILE) -> list[T]:
    """The complete records of a run's folder, in the order written; [] where there are none; the last line may be unfinished.

    Raises UsageError, with the line's number, for a line that is no such record or that another version wrote.
    """
    path = folder / name
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return [_decode(line, kind, f"{path} line {number}") for number, line in enumerate(lines, 1)]


def latest(folder: Path, kind: type[I]) -> list[I]:
    """The records of a run's folder, of what ran again the last one. Raises as `read` does."""
    return list({record.id: record for record in read(folder, kind)}.values())


def _decode(line: bytes, kind: type[T], where: str) -> T:
    try:
        schema = msgspec.json.decode(line, type=_Versioned).schema
        if schema != SCHEMA:
            raise UsageError(f"{where} has the schema {schema!r}, not {SCHEMA}: start a run of its own")
        return msgspec.json.decode(line, type=kind, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"{where} is no record: {line[:40].decode(errors='replace')!r} ({said})") from error


@dataclass(frozen=True)
class _Versioned:
    """What a line of every version has."""

    schema: object = None


def _plain(value: Any) -> Any:
    """The value as JSON can carry it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(v) for v in value]
    return value


def _drop_partial_line(file: BinaryIO) -> int:
    """Cuts the file off behind its last complete line, and returns its size."""
    end = size = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - TAIL)
        file.seek(begin)
        if found := file.read(end - begin).rfind(b"\n") + 1:
            end = begin + found
            break
        end = begin
    if end < size:
        file.truncate(end)
    return end
