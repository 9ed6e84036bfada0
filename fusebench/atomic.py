"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A name beside the file, which takes its place at the end; whatever else ends it, the file stays as it was, and nothing beside it."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
