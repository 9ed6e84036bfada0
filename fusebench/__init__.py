"""fusebench: one kernel in many frameworks, compared, proved and timed on one path. `measure` times any callable."""

from typing import Any

__version__ = "0.1.0"  # pyproject.toml reads it here, so that a tree that is not installed has one too


def __getattr__(name: str) -> Any:
    """Loads `measure` when it is asked for, so that `import fusebench` costs nothing."""
    if name == "measure":
        from fusebench.library import measure

        return measure
    raise AttributeError(f"module 'fusebench' has no attribute {name!r}")
