"""Plain Python and NumPy as a back end, for `fusebench.measure` on callables of neither framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusebench.contract import Device
from fusebench.machine import cpu_name


def start(device: str) -> Device:
    return Device("cpu", cpu_name())


def configure(precision: str) -> None:
    """Nothing to set."""


def put(array: np.ndarray, device: Device) -> np.ndarray:
    return array


def get(array: Any) -> np.ndarray:
    return np.asarray(array)


def copy(array: np.ndarray) -> np.ndarray:
    return array.copy()


def half(array: np.ndarray) -> np.ndarray:
    return array * np.float32(0.5)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def wait(outputs: Any) -> None:
    """A Python call is done when it returns."""


def flush() -> None:
    """Never called: only CUDA calls are queued behind a flush."""


def reset_peak() -> None:
    """The CPU's peak is the harness's to read (machine.py)."""


def peak_bytes() -> int | None:
    return None


def release() -> int:
    return 0
