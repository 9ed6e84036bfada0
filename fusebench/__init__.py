"""fusebench: one kernel in many frameworks, compared, proved and timed on one path. `measure` times any callable."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Loads `measure` when it is asked for, so that `import fusebench` costs nothing."""
    if name == "measure":
        from fusebench.library import measure

        return measure
    raise AttributeError(f"module 'fusebench' has no attribute {name!r}")
