"""`fusebench bench`: a Hydra application that times the chosen cells and prints a table per case."""

from __future__ import annotations

from fusebench.app import run_app


def main(arguments: list[str]) -> int:
    """Exit code 0 if every cell is ok or skipped, 1 if not, 2 for bad input."""
    return run_app("bench", arguments)
