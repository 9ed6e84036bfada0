"""The program that runs under ncu: `python -m fusebench.profiling.cell REQUEST FOLDER PARENT` builds the cell of a request, inline, and
makes one call of it between cuProfilerStart and cuProfilerStop. Its record goes to the folder."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from fusebench import discovery, memory
from fusebench.case_data import CaseData
from fusebench.cell import Trial
from fusebench.configuration import request, values
from fusebench.profiling.run import ask, built
from fusebench.records import store
from fusebench.settings import Run
from fusebench.workers import below, protocol
from fusebench.workers.pool import InlinePool

EXIT_S = 60  # for the frameworks' exit handlers


def main(file: str, folder: str, parent: str) -> None:
    """Raises whatever ends the run as a whole: the cell's own trouble ends in its record."""
    below.end_with(int(parent))
    memory.be_killed_first()
    asked = request.decode(Path(file).read_bytes())
    roots = [Path(root) for root in asked.roots]
    this = Run(discovery.find_kernels(roots, {}), roots, Path(folder), values.settings(asked.chosen))
    (cell,) = asked.cells
    shared = CaseData(this.kernels[cell.case.kernel].mathematics, cell, Path(folder), this.settings, this.clock)

    def count(trial: Trial) -> None:
        ask(trial, protocol.TraceCell(cell.id, counted=True))

    trial = built(
        this, InlinePool(this.settings.device, roots, this.settings.threads), cell, shared, count, judged=False
    )
    store.append(Path(folder), trial.record)


if __name__ == "__main__":
    main(*sys.argv[1:])
    signal.alarm(EXIT_S)
