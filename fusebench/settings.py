"""How the cells of a run are run, and where its wall time goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """How cells are run. `time_s` is the sampling budget of one cell in seconds, 0 for parity alone."""

    device: str = "cpu"
    time_s: float = 0.5
    timeout_s: float = 300.0
    inline: bool = False
    pythons: Mapping[str, str | None] = field(default_factory=dict)


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
