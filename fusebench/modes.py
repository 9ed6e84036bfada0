"""What a kernel's mathematics is in the backward modes: other inputs, outputs and formulas, which are judged as those of `forward` are.

In `backward` the inputs are the kernel's and, behind them, the upstream gradients, and the outputs are the gradients by the inputs
that GRADIENTS names. In `forward_backward` the kernel's own outputs stand before these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusebench.contract import Case, Mathematics

UPSTREAM = "gradient of "  # before the name of an output, or of an input that has one: no name of a kernel.py begins so
VALUE = "value of "  # before the name of an output in `forward_backward`


def reason(kernel: str, mathematics: Mathematics, backward: Mapping[str, Any], case: Case, variant: str) -> str | None:
    """Why an implementation with that BACKWARD has not the mode of the case, or None."""
    if case.mode == "forward":
        return None
    if mathematics.gradient is None:
        return f"kernel.py of {kernel} has no gradient: it has the mode forward alone"
    return (
        None
        if variant in backward
        else f"computes forward alone; BACKWARD of its file names {', '.join(backward) or 'none'}"
    )


def upstream(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What `upstream` of a kernel.py made, by the names that these inputs have."""
    return {f"{UPSTREAM}{name}": array for name, array in arrays.items()}


def count_upstream(names: Sequence[str]) -> int:
    """How many of the inputs are upstream gradients: the last ones."""
    return sum(name.startswith(UPSTREAM) for name in names)


def sums_rows(mathematics: Mathematics, mode: str) -> bool:
    """Whether some output sums over all rows, as gradients of weights do."""
    outputs = mathematics.outputs if mode == "forward" else mathematics.gradients
    return any(name not in mathematics.rows for name in outputs)


def slices(mathematics: Mathematics, arrays: Mapping[str, Any]) -> int:
    """How many independent slices the inputs have: 1 where the kernel names no axis of them."""
    axis = mathematics.slices
    return 1 if axis is None else next(a.shape[axis] for a in arrays.values() if a.dtype.kind not in "iub")


def sliced(mathematics: Mathematics, arrays: Mapping[str, Any]) -> Mathematics:
    """The mathematics whose rows are its slices: of all floats and of all outputs, which have names."""
    floats = (name for name, array in arrays.items() if array.dtype.kind not in "iub")
    axis = mathematics.slices
    return replace(mathematics, rows={} if axis is None else dict.fromkeys((*floats, *mathematics.outputs), axis))


def formula(mathematics: Mathematics, mode: str, part: str = "") -> Callable[..., Any]:
    """The formula of that mode; `part` is one of PARTS, or empty. Raises ValueError where there is none."""
    if mode == "forward":
        return mathematics.formula_of(part)
    gradient = mathematics.gradient
    if gradient is None:
        raise ValueError(f"kernel.py has no gradient, which mode={mode} needs")
    if mode == "backward":
        return gradient
    outputs = max(1, len(mathematics.outputs))

    def both(case: Case, r: Any, *inputs: Any) -> tuple[Any, ...]:
        return *_tuple(mathematics.formula(case, r, *inputs[:-outputs])), *_tuple(gradient(case, r, *inputs))

    return both


def _tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def of(mathematics: Mathematics, mode: str, names: Sequence[str]) -> Mathematics:
    """The mathematics of that mode, where `names` are those of all its inputs. Every output has a name, and an axis in `rows` if
    its rows are independent."""
    if mode == "forward":
        return mathematics
    first = len(names) - count_upstream(names)
    own, behind = names[:first], names[first:]
    axes = {name: mathematics.output_axis(number, own) for number, name in enumerate(behind)}
    dtypes = {name: mathematics.own_dtypes.get(name.removeprefix(UPSTREAM)) for name in behind}
    gradients = {f"{UPSTREAM}{name}": mathematics.rows.get(name) for name in mathematics.gradients if name in own}
    value = {name: name.replace(UPSTREAM, VALUE, 1) for name in behind}
    values = {value[name]: axis for name, axis in axes.items()} if mode == "forward_backward" else {}
    rows = {name: axis for name, axis in mathematics.rows.items() if name in own} | axes | values | gradients
    kept = {value[name]: dtype for name, dtype in dtypes.items()} | dtypes
    kept |= {f"{UPSTREAM}{name}": mathematics.own_dtypes.get(name) for name in mathematics.gradients}
    return replace(
        mathematics,
        formula=formula(mathematics, mode),
        rows={name: axis for name, axis in rows.items() if axis is not None},
        outputs=(*values, *gradients),
        own_dtypes={name: dtype for name, dtype in kept.items() if dtype},
        parts={},
    )
