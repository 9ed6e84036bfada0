"""Progress in lines, for a log: a bar needs a terminal."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

EVERY_S = 10.0  # seconds from line to line at least; a short run prints none


@dataclass
class Lines:
    """The part of rich's Progress that the commands use: it prints what is in hand to stderr, from time to time."""

    total: float | None = None
    completed: float = 0
    description: str = ""
    printed: float = field(default_factory=lambda: time.monotonic())

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Nothing is left to be taken off the screen."""

    def add_task(self, description: str, total: float | None = None, completed: float = 0) -> Any:
        self.description, self.total, self.completed = description, total, completed
        return 0

    def advance(self, task: object, advance: float = 1) -> None:
        self.completed += advance

    def update(
        self, task: object, description: str | None = None, advance: float = 0, total: float | None = None
    ) -> None:
        self.total = self.total if total is None else total
        self.description, self.completed = description or self.description, self.completed + advance
        now = time.monotonic()
        if now - self.printed >= EVERY_S:
            self.printed = now
            of = "" if self.total is None else f" of {self.total:.0f}"
            print(f"{self.completed:.0f}{of} done; {self.description}", file=sys.stderr, flush=True)
