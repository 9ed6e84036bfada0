"""A kernel's Triton implementation for inputs of given shapes, with its backward pass, as both frameworks' functions run it."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusebench import discovery
from fusebench.backends import triton_interpreter
from fusebench.cases import check_name, make_case, positive
from fusebench.contract import DTYPES, Case
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown
from fusebench.ops.shapes import Input, inputs_of, sizes_of


def about(kernel: Kernel) -> str | None:
    """What its kernel.py says first: what it computes, with the shapes of its inputs. The functions' help."""
    return inspect.getdoc(inspect.getmodule(kernel.mathematics.formula))


@dataclass(frozen=True)
class Wanted:
    """What a program is built for, not yet checked. `implementation` is triton or jax_triton, `device` cpu or cuda; options are pairs of
    text, with sizes that no shape shows among them."""

    kernel: str
    implementation: str
    device: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    precision: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Program:
    """forward(*inputs) → (outputs, residuals), backward(residuals, *upstream) → the gradients by the inputs at the places `wanted`.
    `names` are those of all inputs."""

    case: Case
    names: tuple[str, ...]
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    wanted: tuple[int, ...]


@functools.cache
def kernels(implementation: str) -> Mapping[str, Kernel]:
    """The kernels whose `implementation` has a backward pass."""
    found = discovery.find_kernels([discovery.HOME])
    return {
        name: kernel
        for name, kernel in found.items()
        if kernel.mathematics.gradient and getattr(kernel.implementations.get(implementation), "backward", {})
    }


def kernel_of(implementation: str, name: str) -> Kernel:
    """The kernel of that name. Raises UsageError with the nearest names."""
    if name not in kernels(implementation):
        raise unknown("kernel with a backward pass in Triton", name, kernels(implementation))
    return kernels(implementation)[name]


def check_options(kernel: Kernel, options: Mapping[str, str]) -> None:
    """Raises UsageError for a name or a value that is neither an option of the kernel nor one of its sizes."""
    own = {name: value for name, value in options.items() if name in kernel.options}
    for name, value in own.items():
        check_name(f"value of option {name} of {kernel.name}", value, kernel.options[name])
    for name in sorted(options.keys() - own.keys()):
        if name in kernel.dimensions:
            positive(f"{kernel.name}: size {name}", options[name])
        elif name in (order := names_of(kernel, own)):
            raise UsageError(
                f"{kernel.name}: {name} is an input; expected it by position, in the order {', '.join(order)}"
            )
        else:
            raise unknown(f"option of {kernel.name}", name, [*kernel.options, *kernel.dimensions])


def names_of(kernel: Kernel, options: Mapping[str, str]) -> list[str]:
    """The names of all inputs that there may be, in order."""
    return [i.name for i in inputs_of(kernel, options)]


def without_inputs(kernel: Kernel) -> UsageError:
    order = ", ".join(names_of(kernel, {}))
    return UsageError(f"{kernel.name}: got no inputs; expected them by position, in the order {order}")


def no_array(kernel: Kernel, place: int, what: str, expected: str) -> UsageError:
    """Of an input at that place, which is not one of the framework's arrays."""
    names = names_of(kernel, {})
    name = names[place] if place < len(names) else f"input {place + 1}"
    return UsageError(f"{kernel.name}: {name} is {what}; expected {expected}")


def without_gradient(name: str, of: str, instead: str) -> UsageError:
    """Of an input that a call would be differentiated by, such as a scalar: its gradient would be left out without a word."""
    return UsageError(f"{name}: the kernel computes no gradient of {of}; expected {instead}")


def without_second_derivative(name: str) -> UsageError:
    return UsageError(f"{name}: its gradient cannot be differentiated again; first derivatives in reverse mode alone")


@functools.lru_cache(1024)
def program(of: Wanted) -> Program:
    """The program of the first variant that can do it. Raises UsageError with the reason where none can."""
    return built(of)


def built(of: Wanted) -> Program:
    """`program`, built anew."""
    kernel, given = kernel_of(of.implementation, of.kernel), dict(of.options)
    check_options(kernel, given)
    if empty := [shape for shape in of.shapes if 0 in shape]:
        raise UsageError(f"{of.kernel}: an input has the shape {empty[0]}; expected at least 1 of each size")
    sizes, inputs = sizes_of(kernel, of.shapes, given), inputs_of(kernel, given, len(of.shapes))
    options = {name: value for name, value in given.items() if name not in kernel.dimensions}
    case = make_case(kernel, sizes, _dtype(of, inputs), of.precision, options, "backward")
    names = tuple(i.name for i in inputs)
    if problem := kernel.mathematics.shape_problem(case, dict(zip(names, of.shapes, strict=True))):
        raise UsageError(f"{of.kernel}: {problem}")
    own = kernel.implementations[of.implementation]
    _check(of, case, own.missing())
    module = discovery.load_implementation(of.kernel, of.implementation)
    triton_interpreter.quicken()
    device = importlib.import_module(f"fusebench.backends.{own.backend}").start(of.device)
    skip, fits = getattr(module, "skip", lambda *_: None), getattr(module, "fits", lambda *_: None)
    reasons = {}
    for variant in own.backward:
        reasons[variant] = skip(case, variant, device)
        if reasons[variant] is None:
            chosen = module.config(case, variant, device)
            reasons[variant] = fits(case, variant, device, chosen)
        if reasons[variant] is None:
            forward, backward = module.build(case, variant, device, chosen)
            if prepare := getattr(module, "prepare", None):
                forward = _prepared(forward, functools.partial(prepare, case, variant))
            places = tuple(names.index(name) for name in kernel.mathematics.gradients if name in names)
            return Program(case, names, forward, backward, places)
    raise UsageError(f"{of.kernel}: " + "; ".join(f"{variant}: {reason}" for variant, reason in reasons.items()))


def _dtype(of: Wanted, inputs: Sequence[Input]) -> str:
    """The dtype of the case, which the first of its floats says. Raises UsageError for an input of another dtype than kernel.py makes."""
    given = [(i.name, i.dtype, got) for i, got in zip(inputs, of.dtypes, strict=True)]
    name, dtype = next(((n, got) for n, own, got in given if not own and got in DTYPES), ("", ""))
    for other, own, got in given:
        if got != (own or dtype):
            like = own or (f"{dtype}, as {name} is" if dtype else f"one of {', '.join(DTYPES)}")
            wide = own == "int64" and of.implementation == "jax_triton"
            raise UsageError(
                f"{of.kernel}: {other} is {got}; expected {like}{', which JAX has with jax_enable_x64' if wide else ''}"
            )
    return dtype


def _prepared(forward: Callable[..., Any], prepare: Callable[..., Any]) -> Callable[..., Any]:
    """forward, which makes in every call what a training step would make anew."""
    return lambda *inputs: forward(*inputs, *prepare(*inputs))


def _check(of: Wanted, case: Case, missing: str | None) -> None:
    if missing:
        raise UsageError(f"{of.kernel} {missing}")
    if of.device == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise UsageError(
                f"{of.kernel}: the inputs are on the CPU; expected a GPU, or TRITON_INTERPRET=1 before Triton is imported"
            )
        if case.dtype == "bfloat16":
            raise UsageError(
                f"{of.kernel}: Triton's interpreter computes bfloat16 wrongly; expected float32 or float16"
            )
