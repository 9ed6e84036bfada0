"""Plain Python and NumPy as a back end, on the CPU alone; protocol.py says what each function does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fusebench.backends.events import RANGE, Event, Recording, Work
from fusebench.contract import Device
from fusebench.dtypes import numpy_dtype
from fusebench.machine import cpu_name

MODULES = ("numpy", "scipy")
REQUIRES = {"numpy": "numpy"}
MUTABLE = True


def start(device: str) -> Device:
    if device != "cpu":
        raise RuntimeError("NumPy computes on the CPU alone: device=cpu")
    return Device("cpu", cpu_name())


def configure(precision: str) -> None:
    """Nothing to set."""


def settings() -> dict[str, Any]:
    return {"numpy errors": np.geterr()}


def put(array: np.ndarray, device: Device) -> np.ndarray:
    return array.copy()


def get(array: Any) -> np.ndarray:
    return np.asarray(array)


def copy(array: np.ndarray) -> np.ndarray:
    return array.copy()


def overwrite(array: np.ndarray, value: np.ndarray) -> np.ndarray:
    array[...] = value
    return array


def move_rows(array: np.ndarray, axis: int, shift: int, exchanged: tuple[int, int]) -> np.ndarray:
    moved = np.roll(array, shift, axis)
    rows = np.moveaxis(moved, axis, 0)
    rows[list(exchanged)] = rows[list(reversed(exchanged))]
    return moved


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def apart(a: np.ndarray, b: np.ndarray) -> tuple[int, float, float]:
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        other = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        difference = np.where(other, np.abs(x - y), 0.0)
        difference = np.where(np.isnan(difference), np.inf, difference)
        share = np.where(np.isfinite(difference), difference / np.maximum(np.abs(x), np.abs(y)), np.inf)[other]
    return int(other.sum()), float(difference.max(initial=0.0)), float(share.max(initial=0.0))


def unmasked(bits: np.ndarray, mask: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(bits ^ mask).view(numpy_dtype(dtype))


def half(array: np.ndarray) -> np.ndarray:
    return array * array.dtype.type(0.5)


def half_of_product(array: np.ndarray) -> np.ndarray:
    return half(array)  # NumPy has no products of bfloat16


def mixed(array: np.ndarray, other: np.ndarray, share: float) -> np.ndarray:
    if array.dtype.kind in "iub":
        return array
    return array * array.dtype.type(share) + other * array.dtype.type(1 - share)


def watch(call: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, list[str]]:
    return call(*arguments), []


def in_one(call: Callable[..., Any]) -> Callable[..., Any]:
    return call


def in_order(outputs: Any, upstream: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """NumPy computes in the order of the calls."""
    return outputs, upstream


def saved(residuals: Any) -> list[Any]:
    if isinstance(residuals, tuple | list):
        return [array for part in residuals for array in saved(part)]
    return [residuals] if is_array(residuals) else []


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def fault(value: Any, device: Device) -> str | None:
    """What is no array of NumPy itself, of numbers as this machine has them; None for one that is. An object may compute when it is asked."""
    if type(value) is not np.ndarray:
        return type(value).__name__
    plain = (
        value.dtype.isbuiltin and value.dtype.names is None and value.dtype.kind in "biufcV"
    )  # V: a dtype of ml_dtypes
    return None if plain else f"an array of dtype {value.dtype}"


def memory(array: np.ndarray) -> tuple[int, int]:
    return np.lib.array_utils.byte_bounds(array)


def device_of(array: np.ndarray) -> str:
    return "cpu"


def wait(outputs: Any) -> None:
    """A Python call is done when it returns."""


def flush() -> None:
    """Never called: only CUDA calls are queued behind a flush."""


def forget_l2() -> None:
    """Never called, like `flush`."""


def reset_peak() -> None:
    """The CPU's peak is the harness's to read (machine.py)."""


def peak_bytes() -> int | None:
    return None


def held_bytes() -> int | None:
    return None


def record(work: Work) -> Recording:
    """The ranges alone: NumPy's functions tell nobody."""
    events: list[Event] = []
    origin_ns = time.time_ns()

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        begin = time.time_ns()
        yield
        events.append(Event(name, RANGE, (begin - origin_ns) / 1e9, (time.time_ns() - origin_ns) / 1e9))

    work(mark)
    return Recording(tuple(events), (), origin_ns)


def release() -> int:
    return 0
