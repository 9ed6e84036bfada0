"""What `make test` leaves out on a machine without a GPU, where it would take two cores too long: every second one of alike tests, or more. `make thorough` and
`.ci/run` run these, and on a GPU `make test` runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_turns(parameters: Iterable[Any]) -> list[Any]:
    """The parameters of a test, of which every second one is marked; the first stays."""
    return [left_out(p) if number % 2 else p for number, p in enumerate(parameters)]


def left_out(parameters: Any) -> Any:
    """One set of parameters, marked."""
    values = parameters if isinstance(parameters, tuple) else (parameters,)
    return pytest.param(*values, marks=pytest.mark.thorough)
