"""Which elements of an output are wrong, in words: `rows ≥ 64`, `every 2nd column`, `the last column`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FULL = 0.5  # of the elements where the named rows and columns cross: a wrong value may be right by chance


def describe(wrong: np.ndarray, numbers: Sequence[np.ndarray | None] = ()) -> str:
    """A pattern of the True elements, or how many there are. `numbers` are those of the indices along the first axes, where
    `wrong` holds a part of the output."""
    count = int(wrong.sum())
    if count == 0:
        return "no element"
    if count == 1:
        return "one element"
    if count == wrong.size:
        return "every element"
    share = f"{count} of {wrong.size} elements"
    parts, crossing = [], 1
    for axis in range(wrong.ndim):
        hit = np.flatnonzero(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis)))
        crossing *= len(hit)
        known = numbers[axis] if axis < len(numbers) else None
        if len(hit) < wrong.shape[axis]:
            parts.append(_along(_name(axis, wrong.ndim), hit, wrong.shape[axis], known))
    if count < FULL * crossing or not all(parts):
        return f"{share}, scattered"
    return f"{share}: {', '.join(parts)}" if parts else f"{share}, everywhere"


def _name(axis: int, ndim: int) -> tuple[str, str]:
    if axis == ndim - 1:
        return ("column", "columns") if ndim > 1 else ("element", "elements")
    return ("row", "rows") if axis == ndim - 2 else (f"index of axis {axis}", f"indices of axis {axis}")


def _along(name: tuple[str, str], hit: np.ndarray, size: int, numbers: np.ndarray | None) -> str:
    """The hit indices of one axis in words, or "" where they follow no rule."""
    one, many = name
    shown = hit if numbers is None else numbers[hit]
    if len(hit) == 1:
        return f"the last {one}" if hit[0] == size - 1 else f"{one} {shown[0]}"
    steps = np.diff(hit)
    if (steps == 1).all():
        if hit[-1] == size - 1:
            return f"{many} ≥ {shown[0]}"
        return f"{many} ≤ {shown[-1]}" if hit[0] == 0 else f"{many} {shown[0]} … {shown[-1]}"
    if (steps == steps[0]).all() and numbers is None and hit[0] < steps[0] and hit[-1] + steps[0] >= size:
        ordinal = {2: "2nd", 3: "3rd"}.get(int(steps[0]), f"{steps[0]}th")
        return f"every {ordinal} {one} from {hit[0]}"
    return ""
