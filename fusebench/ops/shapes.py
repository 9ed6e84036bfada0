"""The inputs of a kernel, and its sizes from their shapes: kernel.py is asked what it makes of sizes that are primes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fusebench.cases import make_case
from fusebench.discovery import Kernel
from fusebench.errors import UsageError
from fusebench.inputs import make_sets
from fusebench.terminal import counted

# Sizes that no factor of a shape is, such as the 2 of a gate; what another set explains otherwise is no product of sizes
PRIMES, OTHERS = (5, 7, 11, 13, 17, 19, 23, 29, 31), (11, 13, 5, 7, 23, 17, 19, 31, 29)
FEW = 8  # values that a size may have which no shape shows, such as a number of layers

Axis = tuple[int, tuple[str, ...]]  # a factor, 0 of another length, and the dimensions that it is multiplied by


class Input(NamedTuple):
    """An input as kernel.py makes it. `dtype` is "" where it is the case's."""

    name: str
    dtype: str
    axes: list[Axis]


def sizes_of(kernel: Kernel, shapes: Sequence[tuple[int, ...]], options: Mapping[str, Any]) -> dict[str, int]:
    """The size of every dimension; one that these inputs do not have is 1. What no shape shows stands among the options, by the name of
    the dimension. Raises UsageError, which names the input, where the shapes do not go together."""
    problems, given = [], {d: int(options[d]) for d in kernel.dimensions if d in options}
    for hidden, inputs in _expected(kernel, options):
        if [len(i.axes) for i in inputs] != [len(shape) for shape in shapes]:
            problems.append(", ".join(f"{i.name} ({', '.join(map(_shown, i.axes))})" for i in inputs))
            continue
        every = [axis for i in inputs for axis in i.axes]
        sizes = _solved(every, [n for s in shapes for n in s], {**hidden, **given})
        missing = [d for d in kernel.dimensions if d not in sizes]
        if missing and not all(factor for factor, _ in every):
            raise UsageError(
                f"{kernel.name}: no shape shows {', '.join(missing)}; expected it by name, such as {missing[0]}=1000"
            )
        for (name, _, axes), shape in zip(inputs, shapes, strict=True):
            if any(
                factor and factor * math.prod(sizes[d] for d in names) != n
                for (factor, names), n in zip(axes, shape, strict=True)
            ):
                asked = ", ".join(map(_shown, axes))
                known = ", ".join(f"{d}={sizes[d]}" for _, names in axes for d in names)
                raise UsageError(f"{kernel.name}: {name} has the shape {tuple(shape)}; expected ({asked}) with {known}")
        return {d: sizes.get(d, 1) for d in kernel.dimensions}
    got = counted(len(shapes), "input") + (" of the shapes " if len(shapes) > 1 else " of the shape " if shapes else "")
    got += ", ".join(str(tuple(shape)) for shape in shapes)
    raise UsageError(f"{kernel.name}: got {got}; expected {' or '.join(problems)}")


def inputs_of(kernel: Kernel, options: Mapping[str, Any], count: int = 0) -> list[Input]:
    """The inputs in order. Where their number depends on a size they are `count`, or the most that there may be."""
    each = [inputs for _, inputs in _expected(kernel, options)]
    return next((inputs for inputs in each if len(inputs) == count), each[-1])


def _expected(kernel: Kernel, options: Mapping[str, Any]) -> list[tuple[dict[str, int], list[Input]]]:
    """What inputs there may be: the sizes that no shape shows, and the inputs with them."""
    found = []
    for hidden in _hidden(kernel):
        chosen = {name: value for name, value in options.items() if name not in kernel.dimensions}
        free = [d for d in kernel.dimensions if d not in hidden]
        try:
            one, other = (
                _made(kernel, hidden, dict(zip(free, primes, strict=False)), chosen) for primes in (PRIMES, OTHERS)
            )
        except ValueError:
            continue  # a size that this dimension cannot have
        both = [
            i._replace(axes=[a if a == b else (0, ()) for a, b in zip(i.axes, j.axes, strict=True)])
            for i, j in zip(one, other, strict=True)
        ]
        found.append((hidden, both))
        if not hidden:
            break
    return found


def _hidden(kernel: Kernel) -> Iterator[dict[str, int]]:
    """None first, then each dimension with each small value of the named cases."""
    yield {}
    for dimension in kernel.dimensions:
        values = sorted({sizes[dimension] for sizes in kernel.mathematics.cases.values()})
        if len(values) > 1 and values[-1] <= FEW:
            yield from ({dimension: value} for value in values)


def _made(
    kernel: Kernel, hidden: Mapping[str, int], primes: Mapping[str, int], options: Mapping[str, Any]
) -> list[Input]:
    """The inputs that kernel.py makes of these sizes."""
    case = make_case(kernel, {**hidden, **primes}, options=options)
    (arrays,) = make_sets(kernel.mathematics, case, 0, 1)
    own = kernel.mathematics.own_dtypes
    return [
        Input(
            name, "" if a.dtype.kind == "f" and name not in own else a.dtype.name, [_axis(n, primes) for n in a.shape]
        )
        for name, a in arrays.items()
    ]


def _axis(n: int, primes: Mapping[str, int]) -> Axis:
    names = tuple(name for name, prime in primes.items() if n % prime == 0)
    return n // math.prod(primes[name] for name in names), names


def _solved(axes: Sequence[Axis], lengths: Sequence[int], hidden: Mapping[str, int]) -> dict[str, int]:
    """The dimensions that follow from the lengths, one unknown at a time; another becomes 1."""
    sizes = dict(hidden)
    for _ in axes:
        for (factor, names), length in zip(axes, lengths, strict=True):
            unknown = [name for name in names if name not in sizes]
            if len(unknown) == 1:
                sizes[unknown[0]] = max(1, length // (factor * math.prod(sizes[n] for n in names if n in sizes)))
    return {name: 1 for _, names in axes for name in names} | sizes


def _shown(axis: Axis) -> str:
    factor, names = axis
    if not factor:
        return "any"
    return " * ".join([*([str(factor)] if factor > 1 or not names else []), *names])
