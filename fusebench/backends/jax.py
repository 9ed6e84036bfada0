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
_before = {"bytes": 0, "peak": 0}


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


def device_of(array: jax.Array) -> str:
    return "cpu" if next(iter(array.devices())).platform == "cpu" else "cuda"


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
    """Begins the count of `peak_bytes`."""
    _before.update(bytes=_memory("bytes_in_use"), peak=_memory("peak_bytes_in_use"))


def peak_bytes() -> int | None:
    """Device memory at its highest since `reset_peak` beyond what was held then. JAX cannot reset its peak: None where an
    earlier cell's was higher."""
    peak = _memory("peak_bytes_in_use")
    return peak - _before["bytes"] if peak > _before["peak"] else None


def release() -> int:
    """Drops the compiled programs and returns the bytes still held: JAX gives pooled memory back only by ending."""
    jax.clear_caches()
    _scratch.clear()
    return _memory("pool_bytes")


def _memory(name: str) -> int:
    return (jax.devices()[0].memory_stats() or {}).get(name, 0)
