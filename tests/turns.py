"""What `make test` leaves out on a machine without a GPU, where it would take two cores too long: every second one of alike tests. `make thorough` and
`.ci/run` run these, and on a GPU `make test` runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_turns(parameters: Iterable[Any], every: int = 2) -> list[Any]:
    """The parameters of a test, of which one of `every` stays, from the first on; the others are marked."""
    return [left_out(p) if number % every else p for number, p in enumerate(parameters)]


def left_out(parameters: Any) -> Any:
    """One set of parameters, marked."""
    values = parameters if isinstance(parameters, tuple) else (parameters,)
    return pytest.param(*values, marks=pytest.mark.thorough)
