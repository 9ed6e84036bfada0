"""Memory over the time of one call as an SVG, a line for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fusebench import svg
from fusebench.backends.events import Held

FILE = "memory.svg"
MOST = 12  # lines that one can tell apart


def draw(cells: Sequence[tuple[str, Sequence[Held]]], file: Path) -> bool:
    """Draws the cells whose memory changes, the first MOST of them; False where there are none. Raises ImportError without matplotlib."""
    changing = [(name, held) for name, held in cells if len(held) > 1][:MOST]
    if not changing:
        return False
    with svg.figure(file, (9, 4.5)) as figure:
        axes = figure.add_subplot()
        for name, held in changing:
            axes.step([1e3 * h.at for h in held], [h.bytes / 2**20 for h in held], where="post", label=name)
        axes.set_xlabel("time since the call began (ms)")
        axes.set_ylabel("bytes beyond those held before it (MiB)")
        axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", fontsize="small", ncols=2)
    return True
