"""Triton kernels in JAX: jax-triton on a GPU, Triton's interpreter on the CPU, where jax-triton lowers nothing.

The interpreter needs TRITON_INTERPRET=1 before Triton is imported. It works on Torch's CPU tensors, which share the memory
of the NumPy arrays that the callback gets.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
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
    input_output_aliases: Mapping[int, int] | None = None,
    **meta: Any,
) -> Any:
    """Calls `kernel` with `args` (arrays and Python scalars), then one pointer for each of `out_shape`, then `meta`.

    `out_shape` is a jax.ShapeDtypeStruct or a list of them, and the result has its structure. `meta` are the kernel's
    constexpr arguments. A `compute_capability` such as 90 lowers for a GPU that need not be there.

    `input_output_aliases` maps the place of an array among `args` to that of the output which takes its memory; in a jitted
    function that donates the array, nothing is copied. The kernel gets the same pointer for both, or None for the output.
    """
    aliases = dict(input_output_aliases or {})
    # jax-triton takes a Python float for float64
    values = [np.float32(arg) if isinstance(arg, float) else arg for arg in args]
    if jax.default_backend() == "cpu" and compute_capability is None:
        return _interpret(values, kernel, out_shape, grid, meta, aliases)
    call, outputs = _jax_triton()
    options = {"num_warps": num_warps, "num_stages": num_stages, "compute_capability": compute_capability}
    if aliases:
        options |= _aliased(values, kernel, aliases, passes_outputs=outputs == "out_shape")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "input_output_aliases is deprecated")  # its successor is not in 0.3
        return call(*values, kernel=kernel, grid=grid, **{outputs: out_shape}, **options, **meta)


def _aliased(args: list[Any], kernel: Any, aliases: dict[int, int], passes_outputs: bool) -> dict[str, Any]:
    """What tells jax-triton of the aliases. 0.3 counts arrays alone and passes each output to the kernel; 0.4 counts all
    arguments and leaves aliased outputs out, so that their parameters have to be given a None."""
    if passes_outputs:
        return {"input_output_aliases": {sum(map(_is_array, args[:i])): o for i, o in aliases.items()}}
    return {"input_output_aliases": aliases} | {kernel.arg_names[len(args) + o]: None for o in aliases.values()}


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))


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


def _interpret(
    args: list[Any], kernel: Any, out_shape: Any, grid: tuple[int, ...], meta: dict[str, Any], aliases: dict[int, int]
) -> Any:
    """The kernel in Triton's interpreter, as a callback that jit can hold. The callback gets arrays that it must leave alone,
    so that an aliased output is the copy of its input on which the kernel runs: in the same memory, as on a GPU."""
    is_array = [_is_array(arg) for arg in args]
    leaves, structure = jax.tree.flatten(out_shape)

    def run(*arrays: Any) -> list[np.ndarray]:
        import torch

        values = iter(arrays)
        inputs = [
            torch.from_numpy(np.array(next(values))) if held else arg for held, arg in zip(is_array, args, strict=True)
        ]
        sources = {output: inputs[place] for place, output in aliases.items()}
        outputs = [
            sources[i] if i in sources else torch.from_numpy(np.empty(leaf.shape, leaf.dtype))
            for i, leaf in enumerate(leaves)
        ]
        kernel[grid](*inputs, *outputs, **meta)
        return [output.numpy() for output in outputs]

    arrays = [arg for arg, held in zip(args, is_array, strict=True) if held]
    return jax.tree.unflatten(structure, jax.pure_callback(run, leaves, *arrays))
