"""Charts as SVG files, by matplotlib, which the extra `plot` brings. The same figures give the same file."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusebench.errors import UsageError


def check_matplotlib(needs: str) -> None:
    """Raises UsageError where it is missing; `needs` is how the line begins: "plot needs"."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise UsageError(f"{needs} matplotlib: pip install matplotlib, or the extra plot of fusebench") from error


@contextlib.contextmanager
def figure(file: Path, size: tuple[float, float]) -> Iterator[Any]:
    """A matplotlib Figure of that size in inches, which is written to the file at the end. Raises OSError, and ImportError without
    matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure  # half a second

    with matplotlib.rc_context({"svg.hashsalt": "fusebench", "svg.fonttype": "none"}):
        drawn = Figure(figsize=size, layout="constrained")
        yield drawn
        drawn.savefig(file, format="svg", metadata={"Date": None})
