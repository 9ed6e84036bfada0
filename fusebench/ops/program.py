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
from fusebench.cases import check_name, make_case, option_value, positive
from fusebench.contract import DTYPES, Case
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown
from fusebench.ops.shapes import input_names, sizes_of


def about(kernel: Kernel) -> str | None:
    """What its kernel.py says first: what it computes, with the shapes of its inputs. The functions' help."""
    return inspect.getdoc(inspect.getmodule(kernel.mathematics.formula))


@dataclass(frozen=True)
class Wanted:
    """What a program is built for. `implementation` is triton or jax_triton, `device` cpu or cuda, `dtype` that of the floats; options are
    pairs, with sizes that no shape shows among them."""

    kernel: str
    implementation: str
    device: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    dtype: str
    precision: str
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Program:
    """forward(*inputs) → (outputs, residuals), backward(residuals, *upstream) → the gradients by the inputs at the places `wanted`."""

    case: Case
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


def wanted(
    name: str,
    implementation: str,
    device: str,
    arrays: Sequence[tuple[tuple[int, ...], str]],
    precision: str,
    options: Mapping[str, Any],
) -> Wanted:
    """What a call with inputs of these shapes and dtypes needs. Raises UsageError for an unknown option, floats of several dtypes or of
    one that no kernel has, and an empty input."""
    kernel = kernel_of(implementation, name)
    check_options(kernel, options)
    dtypes = tuple(dtype for _, dtype in arrays)
    floats = {n: dtype for n, dtype in enumerate(dtypes) if "float" in dtype}
    dtype = next(iter(floats.values()), "")
    if arrays and dtype not in DTYPES:
        raise UsageError(f"{name}: got inputs of {', '.join(dict.fromkeys(dtypes))}; expected {', '.join(DTYPES)}")
    shapes = tuple(tuple(int(n) for n in shape) for shape, _ in arrays)
    for n, other in floats.items():
        if other != dtype:
            names = input_names(kernel, len(dtypes), options)
            raise UsageError(f"{name}: {names[n]} is {other}; expected {dtype}, as {names[next(iter(floats))]} is")
    if empty := [shape for shape in shapes if 0 in shape]:
        raise UsageError(f"{name}: an input has the shape {empty[0]}; expected at least 1 of each size")
    return Wanted(name, implementation, device, shapes, dtypes, dtype, precision, tuple(sorted(options.items())))


def check_options(kernel: Kernel, options: Mapping[str, Any]) -> None:
    """Raises UsageError for a name or a value that is neither an option of the kernel nor one of its sizes."""
    for name, value in options.items():
        if name in kernel.dimensions:
            positive(f"{kernel.name}: size {name}", value)
        else:
            known = kernel.options[check_name(f"option of {kernel.name}", name, [*kernel.options, *kernel.dimensions])]
            check_name(f"value of option {name} of {kernel.name}", option_value(value, known), known)


def without_second_derivative(name: str) -> UsageError:
    return UsageError(f"{name}: its gradient cannot be differentiated again; first derivatives in reverse mode alone")


@functools.lru_cache(1024)
def program(of: Wanted) -> Program:
    """The program of the first variant that can do it. Raises UsageError with the reason where none can."""
    return built(of)


def built(of: Wanted) -> Program:
    """`program`, built anew."""
    kernel, options = kernel_of(of.implementation, of.kernel), dict(of.options)
    sizes, names = sizes_of(kernel, of.shapes, options), input_names(kernel, len(of.shapes), options)
    options = {name: value for name, value in options.items() if name not in kernel.dimensions}
    case = make_case(kernel, sizes, of.dtype, of.precision, options, "backward")
    own = kernel.implementations[of.implementation]
    _check(of, own.missing())
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
            return Program(case, forward, backward, places)
    raise UsageError(f"{of.kernel}: " + "; ".join(f"{variant}: {reason}" for variant, reason in reasons.items()))


def _prepared(forward: Callable[..., Any], prepare: Callable[..., Any]) -> Callable[..., Any]:
    """forward, which makes in every call what a training step would make anew."""
    return lambda *inputs: forward(*inputs, *prepare(*inputs))


def _check(of: Wanted, missing: str | None) -> None:
    if missing:
        raise UsageError(f"{of.kernel} {missing}")
    if of.device == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise UsageError(
                f"{of.kernel}: the inputs are on the CPU; expected a GPU, or TRITON_INTERPRET=1 before Triton is imported"
            )
        if of.dtype == "bfloat16":
            raise UsageError(
                f"{of.kernel}: Triton's interpreter computes bfloat16 wrongly; expected float32 or float16"
            )
