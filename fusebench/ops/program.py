"""A kernel's Triton implementation for inputs of given shapes, with its backward pass, as both frameworks' functions run it."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Case
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown
from fusebench.ops.shapes import input_names, sizes_of


@dataclass(frozen=True)
class Wanted:
    """What a program is built for. `implementation` is triton or jax_triton, `device` cpu or cuda; options are pairs."""

    kernel: str
    implementation: str
    device: str
    shapes: tuple[tuple[int, ...], ...]
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


def dtype_of(name: str, implementation: str, dtypes: Sequence[str], options: Mapping[str, Any]) -> str:
    """The dtype that all floats of a kernel's inputs have, one for each input. Raises UsageError where they differ."""
    floats = {n: dtype for n, dtype in enumerate(dtypes) if "float" in dtype}
    dtype = next(iter(floats.values()), "")
    for n, other in floats.items():
        if other != dtype:
            names = input_names(kernel_of(implementation, name), len(dtypes), options)
            raise UsageError(f"{name}: {names[n]} is {other}; expected {dtype}, as {names[next(iter(floats))]} is")
    return dtype


@functools.lru_cache(1024)
def program(wanted: Wanted) -> Program:
    """The program of the first variant that can do it. Raises UsageError with the reason where none can."""
    return built(wanted)


def built(wanted: Wanted) -> Program:
    """`program`, built anew."""
    kernel, options = kernel_of(wanted.implementation, wanted.kernel), dict(wanted.options)
    case = make_case(
        kernel, sizes_of(kernel, wanted.shapes, options), wanted.dtype, wanted.precision, options, "backward"
    )
    own = kernel.implementations[wanted.implementation]
    _check(wanted, own.missing())
    module = discovery.load_implementation(wanted.kernel, wanted.implementation)
    device = importlib.import_module(f"fusebench.backends.{own.backend}").start(wanted.device)
    skip, fits = getattr(module, "skip", lambda *_: None), getattr(module, "fits", lambda *_: None)
    reasons = {}
    for variant in own.backward:
        reasons[variant] = skip(case, variant, device)
        if reasons[variant] is None:
            chosen = module.config(case, variant, device)
            reasons[variant] = fits(case, variant, device, chosen)
        if reasons[variant] is None:
            forward, backward = module.build(case, variant, device, chosen)
            names = input_names(kernel, len(wanted.shapes), options)
            places = tuple(names.index(name) for name in kernel.mathematics.gradients if name in names)
            return Program(case, forward, backward, places)
    raise UsageError(f"{wanted.kernel}: " + "; ".join(f"{variant}: {reason}" for variant, reason in reasons.items()))


def _check(wanted: Wanted, missing: str | None) -> None:
    if missing:
        raise UsageError(f"{wanted.kernel} {missing}")
    if wanted.device == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise UsageError(
                f"{wanted.kernel}: the inputs are on the CPU; expected a GPU, or TRITON_INTERPRET=1 before Triton is imported"
            )
        if wanted.dtype == "bfloat16":
            raise UsageError(
                f"{wanted.kernel}: Triton's interpreter computes bfloat16 wrongly; expected float32 or float16"
            )
