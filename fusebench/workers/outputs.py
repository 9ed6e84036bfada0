"""What a call may return: plain arrays of the framework, on the device, in memory that no input has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusebench.contract import Device

Spans = Sequence[tuple[int, int]]  # where memory begins and ends


class Unfit(Exception):
    """A later call returned something else; the message says what."""


def as_list(output: Any) -> list[Any]:
    """The outputs of a call. A tuple or list that is iterated in a way of its own counts as one, and is no array; of one that is made of
    another class, such as a named tuple, no other method is asked."""
    kind = next((k for k in (tuple, list) if issubclass(type(output), k)), None)
    return list(kind.__iter__(output)) if kind and type(output).__iter__ is kind.__iter__ else [output]


def written_bytes(output: Any) -> int:
    """Bytes of the arrays that a call returns: the part of its compulsory traffic that is written."""
    return sum(int(getattr(o, "nbytes", 0)) for o in as_list(output))


def fault(backend: Any, output: Any, device: Device, inputs: Spans) -> str | None:
    """Why a call may not return that, or None; `inputs` are the spans of those that it must leave alone."""
    for one in as_list(output):
        if found := backend.fault(one, device):
            return f"the call returned {found}, expected an array or a tuple of arrays"
    if overlap(spans(backend, output), inputs):
        return "the call returned the memory of an input: a variant that overwrites one names it in IN_PLACE"
    return None


def altered(backend: Any, array: Any, device: Device) -> str | None:
    """What an array of the harness has become that is no plain one, or None. What was prepared may be NumPy's, and on the host."""
    if type(array) is np.ndarray:
        return None
    found: str | None = backend.fault(array, device)
    return found and backend.fault(array, Device("cpu", ""))


def spans(backend: Any, output: Any) -> Spans:
    """The memory of each output."""
    return [backend.memory(one) for one in as_list(output)]


def overlap(a: Spans, b: Spans) -> bool:
    """Whether some memory of `a` is memory of `b`."""
    return any(max(x[0], y[0]) < min(x[1], y[1]) for x in a for y in b)
