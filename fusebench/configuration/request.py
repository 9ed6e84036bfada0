"""A job's request: the cells that it runs and the configuration that they follow from, built once, where the job is submitted.

It is plain values: a launcher may pickle it, and `encode` writes it as JSON. What only the machine that runs the job can say, such
as the device of `device=auto`, is not in it (values.settings).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from fusebench import cases
from fusebench.configuration import story
from fusebench.contract import STATUSES, Cell
from fusebench.discovery import Kernel

R = TypeVar("R")


@dataclass(frozen=True)
class Request:
    """What one job of `command` runs: `cells`, of kernels under `roots`, as `chosen` has it, which is what the run keeps. Cells on
    record with a status in `retry` run again."""

    command: str
    roots: tuple[str, ...]
    chosen: Mapping[str, Any]
    cells: tuple[Cell, ...]
    retry: tuple[str, ...] = ()


def build(command: str, roots: Sequence[Path], chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Request:
    """The request of a configuration. Raises UsageError for whatever in it does not exist."""
    retry = [] if chosen.get("retry") is None else cases.some(chosen["retry"], "retry")
    statuses = tuple(cases.check_name("status", str(status), STATUSES) for status in retry)
    cells = cases.select_cells(kernels, chosen) if chosen.get("story") is None else story.read(kernels, chosen).cells
    return Request(command, tuple(map(str, roots)), chosen, tuple(cells), statuses)


def encode(request: Request) -> bytes:
    return msgspec.json.encode(request)


def decode(data: bytes) -> Request:
    """Raises msgspec.MsgspecError for what `encode` did not write."""
    return msgspec.json.decode(data, type=Request)


@dataclass
class Requests(Generic[R]):
    """The requests of a command's jobs by their configurations. A job that was not foreseen, of a sweeper that chooses as it goes,
    has its request built when it begins."""

    build: Callable[[Mapping[str, Any]], R]
    known: dict[str, R] = field(default_factory=dict)

    def add(self, chosen: Mapping[str, Any]) -> R:
        """Builds the request of a job, which is checked by that."""
        return self.known.setdefault(_key(chosen), self.build(chosen))

    def of(self, chosen: Mapping[str, Any]) -> R:
        """The request of the job with that configuration."""
        return self.known.get(_key(chosen)) or self.build(chosen)


def _key(chosen: Mapping[str, Any]) -> str:
    return json.dumps(chosen, sort_keys=True, default=str)
