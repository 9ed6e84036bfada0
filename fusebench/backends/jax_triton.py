"""Triton kernels in JAX: jax-triton on a GPU, Triton's interpreter on the CPU, where jax-triton lowers nothing.

The interpreter needs TRITON_INTERPRET=1 before Triton is imported. It works on Torch's CPU tensors, which share the memory
of the NumPy arrays that the callback gets.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def triton_call(
    *args: Any,
    kernel: Any,
    out_shape: Any,
    grid: tuple[int, ...],
    num_warps: int = 4,
    num_stages: int = 3,
    compute_capability: int | None = None,
    **meta: Any,
) -> Any:
    """Calls `kernel` with `args` (arrays and Python scalars), then one pointer for each of `out_shape`, then `meta`.

    `out_shape` is a jax.ShapeDtypeStruct or a list of them, and the result has its structure. `meta` are the kernel's
    constexpr arguments. A `compute_capability` such as 90 lowers for a GPU that need not be there.
    """
    # jax-triton takes a Python float for float64
    values = [np.float32(arg) if isinstance(arg, float) else arg for arg in args]
    if jax.default_backend() == "cpu" and compute_capability is None:
        return _interpret(values, kernel, out_shape, grid, meta)
    call, outputs = _jax_triton()
    options = {"num_warps": num_warps, "num_stages": num_stages, "compute_capability": compute_capability}
    return call(*values, kernel=kernel, grid=grid, **{outputs: out_shape}, **options, **meta)


@functools.cache
def _jax_triton() -> tuple[Callable, str]:
    """jax-triton's `triton_call` and what it calls the outputs: `out_shape` up to 0.3, `out_type` from 0.4."""
    from triton.backends.nvidia import driver

    if not hasattr(driver, "TMA_TF32"):
        driver.TMA_TF32 = 11  # jax-triton 0.4 reads what only Triton 3.7 and later have: CUtensorMapDataType's TFLOAT32
    cache = os.environ.get("TRITON_CACHE_DIR")
    from jax_triton import triton_call

    os.environ.pop("TRITON_CACHE_DIR", None)  # 0.3 leaves it empty, 0.4 deletes it
    if cache:
        os.environ["TRITON_CACHE_DIR"] = cache
    known = inspect.signature(triton_call).parameters
    return triton_call, "out_type" if "out_type" in known else "out_shape"


def _interpret(args: list[Any], kernel: Any, out_shape: Any, grid: tuple[int, ...], meta: dict[str, Any]) -> Any:
    """The kernel in Triton's interpreter, as a callback that jit can hold."""
    is_array = [isinstance(arg, (jax.Array, np.ndarray)) for arg in args]
    leaves, structure = jax.tree.flatten(out_shape)

    def run(*arrays: Any) -> list[np.ndarray]:
        import torch

        values = iter(arrays)
        inputs = [
            torch.from_numpy(np.array(next(values))) if held else arg for held, arg in zip(is_array, args, strict=True)
        ]
        outputs = [np.empty(leaf.shape, leaf.dtype) for leaf in leaves]
        kernel[grid](*inputs, *map(torch.from_numpy, outputs), **meta)
        return outputs

    arrays = [arg for arg, held in zip(args, is_array, strict=True) if held]
    return jax.tree.unflatten(structure, jax.pure_callback(run, leaves, *arrays))
