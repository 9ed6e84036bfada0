"""The program that runs under a tool: `python -m fusebench.sanitizer.cell REQUEST FOLDER PARENT` checks the cells of a request, inline.

Their records go to the folder. It ends by itself if its parent is gone: the tool between them does not pass that on.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from fusebench import discovery, memory
from fusebench.configuration import request, values
from fusebench.run import run
from fusebench.settings import Run
from fusebench.workers import below

EXIT_S = 60  # for the frameworks' exit handlers, which may hang on a device that a finding has broken


def main(file: str, folder: str, parent: str) -> None:
    """Raises whatever ends the run as a whole: the cells' own trouble ends in their records."""
    below.end_with(int(parent))
    memory.be_killed_first()
    asked = request.decode(Path(file).read_bytes())
    roots = [Path(root) for root in asked.roots]
    settings = values.settings(asked.chosen)
    for _ in run(Run(discovery.find_kernels(roots, {}), roots, Path(folder), settings), asked.cells):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
    signal.alarm(EXIT_S)
