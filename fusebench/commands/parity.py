"""`fusebench parity`: the same cells as `bench` without timing: error, budget and the worst element of each."""

from __future__ import annotations

from fusebench.app import run_app


def main(arguments: list[str]) -> int:
    """Exit code 0 if every cell is ok or skipped, 1 if not, 2 for bad input."""
    return run_app("parity", arguments)
