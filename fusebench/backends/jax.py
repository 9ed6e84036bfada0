"""JAX as a back end: its arrays, its synchronisation, its L2 flush, its memory. Siblings offer the same functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fusebench.contract import Device
from fusebench.machine import cpu_name

FLUSH_BYTES = 256 * 2**20  # five times an H200's L2
_scratch: dict[str, jax.Array] = {}
_highest = {"peak": 0, "grown": 0}


def start(device: str) -> Device:
    """Takes hold of `device` ("cpu" or "cuda") and describes it.

    Raises RuntimeError where JAX sees no GPU.
    """
    jax.config.update("jax_enable_x64", True)  # ids reach 2³²-1; floats keep the dtype they are given
    if device == "cpu":
        return Device("cpu", cpu_name())
    if jax.default_backend() != "gpu":
        raise RuntimeError("jax sees no CUDA device: pip install 'jax[cuda13]'")
    gpu = jax.devices()[0]
    major, minor = (int(part) for part in str(gpu.compute_capability).split("."))
    return Device("cuda", gpu.device_kind, (major, minor), getattr(gpu, "core_count", 0))


def configure(precision: str) -> None:
    """Fresh compiler state, and float32 products in IEEE float32 or TF32: Torch and JAX default differently."""
    jax.clear_caches()
    jax.config.update("jax_default_matmul_precision", "highest" if precision == "ieee" else "tensorfloat32")


def put(array: np.ndarray, device: Device) -> jax.Array:
    """The same bits on the device."""
    return jax.device_put(array)


def get(array: jax.Array) -> np.ndarray:
    """The same bits in NumPy."""
    return np.asarray(array)


def is_array(value: Any) -> bool:
    return isinstance(value, jax.Array)


def wait(outputs: Any) -> None:
    """Returns when the device has finished making `outputs` and the last flush."""
    jax.block_until_ready((outputs, _scratch))


@jax.jit
def _invert(buffer: jax.Array) -> jax.Array:
    return ~buffer


def flush() -> None:
    """Queues a kernel on JAX's stream that reads and writes more than the L2 holds, and that no kernel under test uses."""
    _scratch["flush"] = _invert(_scratch["flush"] if "flush" in _scratch else jnp.zeros(FLUSH_BYTES, jnp.int8))


def reset_peak() -> None:
    _highest["peak"] = _peak()


def peak_bytes() -> int | None:
    """Device memory at its highest, where this cell raised the process's peak; else None, because JAX cannot reset it."""
    peak = _peak()
    return peak if peak > _highest["peak"] else None


def release() -> int:
    """Drops the compiled programs and returns the bytes still held: JAX gives pooled memory back only by ending."""
    jax.clear_caches()
    _scratch.clear()
    return (jax.devices()[0].memory_stats() or {}).get("pool_bytes", 0)


def _peak() -> int:
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
