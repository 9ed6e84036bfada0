"""JAX as a back end: its arrays, its synchronisation, its L2 flush, its memory. protocol.py says what each does."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fusebench.backends import kineto, persisting, xla
from fusebench.backends import numpy as on_host
from fusebench.backends.events import Recording, Work
from fusebench.contract import Device
from fusebench.machine import cpu_name

MODULES = ("jax", "jaxlib", "flax")
REQUIRES = {"jax": "jax"}
MUTABLE = False
FLUSH_BYTES = 256 * 2**20  # five times an H200's L2
_scratch: dict[str, jax.Array] = {}
_before = {"bytes": 0, "peak": 0}


def start(device: str) -> Device:
    """Takes hold of `device` ("cpu" or "cuda") and describes it.

    Raises RuntimeError where JAX sees no GPU.
    """
    if device == "cpu":
        return Device("cpu", cpu_name())
    if jax.default_backend() != "gpu":
        raise RuntimeError("jax sees no CUDA device: pip install 'jax[cuda13]'")
    gpu = jax.devices()[0]
    major, minor = (int(part) for part in str(gpu.compute_capability).split("."))
    return Device("cuda", gpu.device_kind, (major, minor), getattr(gpu, "core_count", 0))


def configure(precision: str) -> None:
    """Fresh compiler state, and float32 products in IEEE float32 or TF32: Torch and JAX default differently."""
    jax.config.update("jax_enable_x64", True)  # ids reach 2³²-1; floats keep the dtype they are given
    jax.clear_caches()
    jax.config.update("jax_default_matmul_precision", "highest" if precision == "ieee" else "tensorfloat32")
    if jax.default_backend() == "gpu":
        persisting.forbid()


def settings() -> dict[str, Any]:
    """The whole configuration of JAX, and of Flax where it is loaded."""
    limit = {"persisting L2 bytes": persisting.raised()} if jax.default_backend() == "gpu" else {}
    flax = getattr(getattr(sys.modules.get("flax"), "config", None), "_values", {})
    return {
        **limit,
        **{f"jax.config {name}": value for name, value in jax.config.values.items()},
        **{f"flax.config {name}": value for name, value in flax.items()},
    }


def put(array: np.ndarray, device: Device) -> jax.Array:
    """The same bits on the device."""
    return jax.device_put(array)


def get(array: jax.Array) -> np.ndarray:
    """The same bits in NumPy."""
    return np.asarray(array)


def _on_host() -> bool:
    """Whether NumPy sees the memory of arrays."""
    return jax.default_backend() == "cpu"


def copy(array: jax.Array) -> jax.Array:
    """The same bits in memory of its own. On a CPU without XLA, which compiles for each shape anew."""
    if _on_host():
        return jax.device_put(array, may_alias=False)
    return jnp.array(array, copy=True)


def _deleted(array: jax.Array | np.ndarray) -> bool:
    """Whether a call has taken the array. What is prepared may be NumPy's, which nobody takes."""
    return isinstance(array, jax.Array) and array.is_deleted()


def overwrite(array: jax.Array, value: jax.Array) -> jax.Array:
    """An array with the bits of `value` in the memory of `array`, which is donated for it, unless a call has taken it."""
    return copy(value) if _deleted(array) else _copied_into(array, value)


@functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
def _copied_into(array: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.array(value, copy=True)


def move_rows(array: jax.Array, axis: int, shift: int, exchanged: tuple[int, int]) -> jax.Array:
    """`array` rolled along the axis, then with two rows exchanged. On a CPU without XLA."""
    if _on_host():
        moved = np.roll(np.asarray(array), shift, axis)
        rows = np.moveaxis(moved, axis, 0)
        rows[[*exchanged]] = rows[[*reversed(exchanged)]]
        # XLA's own memory, which may be donated: device_put alone shares NumPy's, whatever may_alias says
        return copy(jax.device_put(moved))
    return _moved(array, axis % array.ndim, shift, *exchanged)


@functools.partial(jax.jit, static_argnums=1)
def _moved(array: jax.Array, axis: int, shift: int, a: int, b: int) -> jax.Array:
    moved = jnp.roll(array, shift, axis)
    rows = [jax.lax.dynamic_index_in_dim(moved, row, axis) for row in (a, b)]
    moved = jax.lax.dynamic_update_index_in_dim(moved, rows[1], a, axis)
    return jax.lax.dynamic_update_index_in_dim(moved, rows[0], b, axis)


def same(a: jax.Array, b: jax.Array) -> bool:
    """Whether two arrays have the same bits, compared where they are. On a CPU without XLA."""
    if a.shape != b.shape or a.dtype != b.dtype or _deleted(a):
        return False
    if _on_host():
        here, there = (np.ascontiguousarray(array).view(np.uint8) for array in (a, b))
        return np.array_equal(here, there)
    return bool(_same_bits(a, b))


@jax.jit
def _same_bits(a: jax.Array, b: jax.Array) -> jax.Array:
    if jnp.issubdtype(a.dtype, jnp.floating):
        bits = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[a.dtype.itemsize]
        a, b = jax.lax.bitcast_convert_type(a, bits), jax.lax.bitcast_convert_type(b, bits)
    return (a == b).all()


def apart(a: jax.Array, b: jax.Array) -> tuple[int, float, float]:
    """How many elements differ, and the largest difference, also as a share. On a CPU without XLA."""
    if _on_host():
        return on_host.apart(np.asarray(a), np.asarray(b))
    elements, largest, share = _apart(a, b)
    return int(elements), float(largest), float(share)


@jax.jit
def _apart(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, y = a.astype(jnp.float64), b.astype(jnp.float64)
    other = ~((x == y) | (jnp.isnan(x) & jnp.isnan(y)))
    difference = jnp.where(other, jnp.abs(x - y), 0.0)
    difference = jnp.where(jnp.isnan(difference), jnp.inf, difference)
    share = jnp.where(jnp.isfinite(difference), difference / jnp.maximum(jnp.abs(x), jnp.abs(y)), jnp.inf)
    return other.sum(), difference.max(initial=0.0), jnp.where(other, share, 0.0).max(initial=0.0)


def unmasked(bits: jax.Array, mask: jax.Array, dtype: str) -> jax.Array:
    """On a CPU without XLA."""
    if _on_host():
        return copy(jax.device_put(on_host.unmasked(np.asarray(bits), np.asarray(mask), dtype)))
    return _unmasked(bits, mask, dtype)


@functools.partial(jax.jit, static_argnums=2)
def _unmasked(bits: jax.Array, mask: jax.Array, dtype: str) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits ^ mask, jnp.dtype(dtype))


@jax.jit
def half(array: jax.Array) -> jax.Array:
    """The array times one half: shows whether subnormals survive."""
    return array * 0.5


@jax.jit
def half_of_product(array: jax.Array) -> jax.Array:
    return array @ (0.5 * jnp.eye(len(array), dtype=array.dtype))


def mixed(array: jax.Array, other: jax.Array, share: float) -> jax.Array:
    """Through NumPy: XLA would compile for each shape."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return copy(jax.device_put(on_host.mixed(np.asarray(array), np.asarray(other), share)))


# What may stand beside a kernel of one's own in a jaxpr: calls, shapes, an order, and the callback that interprets Triton on the CPU.
_QUIET = {"pjit", "jit", "closed_call", "core_call", "reshape", "broadcast_in_dim", "squeeze", "convert_element_type", "copy",
          "copy_p", "optimization_barrier", "slice", "transpose"}  # fmt: skip
_LAUNCHES = {
    "triton_kernel_call",
    "pallas_call",
    "ffi_call",
    "buffer_callback",
    "pure_callback",
}  # of kernels of one's own


def watch(call: Any, arguments: Sequence[Any]) -> tuple[Any, list[str]]:
    """The output of a call, and the JAX primitives that it computes with."""
    names: dict[str, None] = {}

    def walk(jaxpr: Any) -> None:
        for equation in (e for e in jaxpr.eqns if e.primitive.name not in _LAUNCHES):
            inner = [v for v in equation.params.values() if hasattr(v, "eqns") or hasattr(v, "jaxpr")]
            for value in inner:
                walk(getattr(value, "jaxpr", value))
            if equation.primitive.name not in _QUIET:
                names[f"jax's {equation.primitive.name}"] = None

    walk(jax.make_jaxpr(call)(*arguments).jaxpr)
    return call(*arguments), list(names)


def in_one(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call jitted: XLA sees forward and backward together."""
    jitted: Callable[..., Any] = jax.jit(call)
    return jitted


def in_order(outputs: Any, upstream: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Behind a barrier: without it XLA makes an output and the gradient before it in one pass, which no training step can. The
    outputs come from the barrier too: XLA drops one of whose results only the others are used."""
    ordered: tuple[Any, Sequence[Any]] = jax.lax.optimization_barrier((outputs, upstream))
    return ordered


def saved(residuals: Any) -> list[Any]:
    """The leaves of a pytree, such as what jax.vjp returns, that are arrays."""
    return [leaf for leaf in jax.tree.leaves(residuals) if is_array(leaf)]


def is_array(value: Any) -> bool:
    return isinstance(value, jax.Array)


def fault(value: Any, device: Device) -> str | None:
    """What is no array of JAX itself, concrete, on the device; None for one that is."""
    if type(value) is not _array():
        return type(value).__name__
    if own := [name for name in vars(value) if hasattr(type(value), name)]:
        return f"an array with a {own[0]} of its own"
    if value.is_deleted():
        return "an array that is deleted"
    return (
        None
        if value.devices() == {jax.devices()[0]}
        else f"an array on {value.devices()} rather than {jax.devices()[0]}"
    )


@cache
def _array() -> Any:
    """The type of JAX's concrete arrays, which has no public name."""
    return type(jax.device_put(np.zeros(1)))


def memory(array: jax.Array) -> tuple[int, int]:
    """Where its buffer begins and ends; of one that is deleted, nowhere."""
    if _deleted(array):
        return 0, 0
    begin = array.unsafe_buffer_pointer()
    return begin, begin + array.nbytes


def device_of(array: jax.Array) -> str:
    """Its type. Raises ValueError for a GPU that is not the first, or several: flush, wait and state are the first one's."""
    first, *others = array.devices()
    if first.platform == "cpu":
        return "cpu"
    if others or first != jax.devices()[0]:
        raise ValueError(f"{array.devices()}: only the first visible GPU can be timed; CUDA_VISIBLE_DEVICES chooses it")
    return "cuda"


def wait(outputs: Any) -> None:
    """Returns when the device has finished making `outputs` and the last flush."""
    jax.block_until_ready((outputs, _scratch))


@functools.partial(jax.jit, donate_argnums=0)
def _invert(buffer: jax.Array) -> jax.Array:
    """In place, as Torch's flush is: all lines of L2 are left to be written back, not every second one, which a call would feel."""
    return ~buffer


def flush() -> None:
    """Queues a kernel on JAX's stream that reads and writes more than the L2 holds, and that no kernel under test uses."""
    _scratch["flush"] = _invert(_scratch["flush"] if "flush" in _scratch else jnp.zeros(FLUSH_BYTES, jnp.int8))


def forget_l2() -> None:
    """No line of L2 persists any more."""
    persisting.reset()


def reset_peak() -> None:
    """Begins the count of `peak_bytes`."""
    _before.update(bytes=_memory("bytes_in_use"), peak=_memory("peak_bytes_in_use"))


def peak_bytes() -> int | None:
    """Device memory at its highest since `reset_peak` beyond what was held then. JAX cannot reset its peak: None where an
    earlier cell's was higher."""
    peak = _memory("peak_bytes_in_use")
    return peak - _before["bytes"] if peak > _before["peak"] else None


def held_bytes() -> int | None:
    """Bytes of the arrays on the GPU; None on the CPU."""
    return _memory("bytes_in_use") if jax.default_backend() == "gpu" else None


def record(work: Work) -> Recording:
    """On a GPU by torch.profiler, which sees JAX's kernels too, on a CPU by JAX's own profiler."""
    if jax.default_backend() == "gpu":
        return kineto.record(work, "cuda", allocations=False)
    return xla.record(work)


def release() -> int:
    """Drops the compiled programs and returns the bytes still held: JAX gives pooled memory back only by ending."""
    jax.clear_caches()
    _scratch.clear()
    return _memory("pool_bytes")


def _memory(name: str) -> int:
    return (jax.devices()[0].memory_stats() or {}).get(name, 0)
