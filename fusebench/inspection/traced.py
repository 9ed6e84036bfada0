"""What JAX and XLA make of a cell, from the shapes and dtypes of its arguments: nothing runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from fusebench.contract import Cell, Device
from fusebench.discovery import Implementation, Kernel
from fusebench.inputs import make_sets
from fusebench.workers.stages import NotInspected, check_there, failed, load

# in XLA's text, where each instruction was made: the files and functions of the whole call stack
_TRACES = re.compile(r"\n(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:[^\n]+\n)*")
STAGES = ("jaxpr", "stablehlo", "hlo", "shapes")


def trace(cell: Cell, implementation: Implementation, kernel: Kernel, stage: str) -> str:
    """A stage of the cell's call, as its worker would compile it for this machine's device of JAX, whose configuration is left as it
    was. Raises NotInspected."""
    check_there(implementation)
    if implementation.backend != "jax":
        raise NotInspected(
            f"no such stage: {', '.join(STAGES)} are of implementations in JAX, and this one is in {implementation.backend}"
        )
    if cell.case.mode != "forward":
        raise NotInspected(f"{', '.join(STAGES)} are those of mode=forward")
    import jax

    from fusebench.backends import jax as backend

    module = load(implementation.kernel, implementation.name)
    device = backend.start("cuda" if jax.default_backend() == "gpu" else "cpu")
    if (skip := getattr(module, "skip", None)) and (reason := skip(cell.case, cell.variant, device)):
        raise NotInspected(f"skipped: {reason}")
    before = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_matmul_precision")}
    backend.configure(cell.case.precision)
    try:
        return _trace(jax, _call(module, cell, device), _shapes(jax, module, cell, kernel), stage)
    except Exception as error:
        raise failed(error) from error
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _call(module: Any, cell: Cell, device: Device) -> Callable[..., Any]:
    if not hasattr(module, "config"):
        return module.build(cell.case, cell.variant, device)
    config = module.config(cell.case, cell.variant, device) | dict(cell.config)
    return module.build(cell.case, cell.variant, device, config)


def _shapes(jax: Any, module: Any, cell: Cell, kernel: Kernel) -> dict[str, Any]:
    """The names of the call's arguments, with their shapes and dtypes: the inputs, the weights, and what is prepared."""
    (arrays,) = make_sets(kernel.mathematics, cell.case, cell.seed, 1)
    named = {name: jax.ShapeDtypeStruct(np.shape(a), _dtype(a)) for name, a in arrays.items()}
    if hasattr(module, "prepare"):
        prepared = jax.eval_shape(lambda *inputs: module.prepare(cell.case, cell.variant, *inputs), *named.values())
        named |= {f"prepared {number}": shape for number, shape in enumerate(prepared)}
    return named


def _dtype(array: Any) -> Any:
    return ml_dtypes.bfloat16 if str(array.dtype) == "bfloat16" else array.dtype


def _trace(jax: Any, call: Callable[..., Any], shapes: Mapping[str, Any], stage: str) -> str:
    if stage == "shapes":
        made = jax.tree.leaves(jax.eval_shape(call, *shapes.values()))
        named = {**shapes, **{f"output {number}": shape for number, shape in enumerate(made)}}
        return "\n".join(f"{name:12}  {shape.dtype}{list(shape.shape)}" for name, shape in named.items())
    if stage == "jaxpr":
        return str(jax.make_jaxpr(call)(*shapes.values()))
    lowered = jax.jit(call).lower(*shapes.values())
    return str(lowered.as_text() if stage == "stablehlo" else _TRACES.sub("\n", lowered.compile().as_text()))
