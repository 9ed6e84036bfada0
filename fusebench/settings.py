"""A run in hand: how its cells are run, and where its wall time goes."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.timing.plan import Plan


@dataclass(frozen=True)
class Settings:
    """How cells are run. `plan` says how they are timed, `Plan(time_s=0)` parity alone; `threads` how many the CPU back ends
    may use, None for all that this process may; `rows_seed` which rows of a large case are looked at where not all can be,
    others in each run unless it is given; `hard` whether every implementation is judged on hard inputs as well; `tuned` whether implementations take
    the configs of tuned.json; `fits` whether configs that do not fit are left out; `compile_timeout_s` limits the first call alone."""

    device: str = "cpu"
    plan: Plan = field(default_factory=Plan)
    timeout_s: float = 300.0
    threads: int | None = None
    inline: bool = False
    pythons: Mapping[str, str | None] = field(default_factory=dict)
    rows_seed: int = field(default_factory=lambda: secrets.randbits(31))
    hard: bool = False
    tuned: bool = True
    fits: bool = True
    compile_timeout_s: float | None = None

    def limit_s(self, phase: str) -> float:
        """After how many seconds a worker is given up that does not answer in that phase of a cell."""
        return self.compile_timeout_s or self.timeout_s if phase == "compile" else self.timeout_s


@dataclass
class Clock:
    """Where the wall time of a run went, in seconds."""

    start_up: float = 0.0
    inputs: float = 0.0
    compile: float = 0.0
    parity: float = 0.0
    timing: float = 0.0

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Adds the time of the block to that phase, however the block ends."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, phase, getattr(self, phase) + time.perf_counter() - begin)


@dataclass
class Run:
    """The settings of a run, the kernels and the folders that they are from, where its records go, and its clock. `on_phase` hears
    which step of which cell begins."""

    kernels: Mapping[str, Kernel]
    roots: Sequence[Path]
    folder: Path
    settings: Settings
    clock: Clock = field(default_factory=Clock)
    on_phase: Callable[[Cell, str], None] = lambda cell, phase: None
