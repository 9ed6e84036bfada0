"""Upstream gradients that are not there while the untimed forward of mode=backward runs: it could find them through the collector of garbage, and
compute the gradients before the clock starts. They are kept as bits that say nothing without those of a mask, and made when forward
has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusebench import draws
from fusebench.contract import Device

Masks = dict[tuple[tuple[int, ...], str], tuple[np.ndarray, Any]]  # on the host and on the device, by shape and dtype


@dataclass(frozen=True)
class Late:
    """An array that `make` makes of its parts, in memory of its own, each time that it is asked."""

    parts: tuple[Any, ...]
    make: Callable[[], Any]
    shape: tuple[int, ...]
    nbytes: int


def hide(backend: Any, device: Device, array: np.ndarray, masks: Masks) -> Late:
    """The array, from now on in the form that says nothing; `masks` are shared by those that live together, for the sake of memory."""
    dtype, integers = array.dtype.name, np.dtype(f"int{8 * array.dtype.itemsize}")
    if (array.shape, dtype) not in masks:
        rng = np.random.default_rng(draws.below(2**127))
        limits = np.iinfo(integers)
        drawn = np.asarray(rng.integers(limits.min, limits.max, array.shape, integers, endpoint=True))
        masks[array.shape, dtype] = drawn, backend.put(drawn, device)
    on_host, mask = masks[array.shape, dtype]
    bits = backend.put(np.asarray(array.view(integers) ^ on_host), device)
    return Late((bits, mask), lambda: backend.unmasked(bits, mask, dtype), array.shape, array.nbytes)


def made(array: Any) -> Any:
    """The array, which is made now if it is late."""
    return array.make() if isinstance(array, Late) else array


def changed(array: Any, change: Callable[[Any], Any]) -> Any:
    """What that makes of the array, as late as the array is."""
    return replace(array, make=lambda: change(array.make())) if isinstance(array, Late) else change(array)


def copied(backend: Any, array: Any) -> Any:
    """A copy, which a late array is each time that it is made."""
    return array if isinstance(array, Late) else backend.copy(array)


def parts(array: Any) -> tuple[Any, ...]:
    """The arrays of the back end that there are of it."""
    return array.parts if isinstance(array, Late) else (array,)
