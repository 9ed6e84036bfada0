"""The fused Triton kernels as differentiable functions of Torch tensors, by the names of the kernels:

    from fusebench.ops.torch import lola
    y = lola(x, W, b, activation="relu")
    y.sum().backward()

Each takes the inputs of its kernel.py by position, and by name its options and the sizes that no shape shows (V of embedding);
`precision` is how float32 products are computed, "ieee" or "tf32". Floats have one dtype, integers that of kernel.py, and scalars no
gradient. They are operators of torch.library, so that torch.compile keeps them whole in one graph; a new shape is a new program.
Derivatives are first ones in reverse mode, by autograd: torch.func is not for them. Raises UsageError for other inputs, and for what a
kernel cannot do; under torch.compile an error of Dynamo has its sentence.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusebench.discovery import Kernel
from fusebench.errors import UsageError
from fusebench.ops import program as programs
from fusebench.ops.program import Program, Wanted, about, kernel_of, kernels

INPUT, OUTPUT, NEW = "input", "output", "new"
Places = tuple[
    bool, tuple[tuple[str, int], ...]
]  # whether the residuals are one array alone; of each: in the inputs, the outputs, what is new


def __getattr__(name: str) -> Callable[..., Any]:
    """The function of a kernel."""
    if name not in kernels("triton"):
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: kernels are {', '.join(kernels('triton'))}"
        )
    return _function(name)


def __dir__() -> list[str]:
    return [*kernels("triton")]


@functools.cache
def _function(name: str) -> Callable[..., Any]:
    kernel, (forward, _) = kernel_of("triton", name), _operators(name)
    outputs = max(1, len(kernel.mathematics.outputs))

    def function(*inputs: torch.Tensor, precision: str = "ieee", **options: Any) -> Any:
        _check(kernel, inputs)
        made = forward([i.contiguous() for i in inputs], [f"{precision}", *(f"{n}={v}" for n, v in options.items())])
        return made[0] if outputs == 1 else tuple(made[:outputs])

    # code of its own: torch.compile counts the compilations of each
    code = function.__code__.replace(co_name=name)
    own = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    own.__kwdefaults__, own.__doc__ = function.__kwdefaults__, about(kernel)
    own.__module__, own.__qualname__ = __name__, name  # by which pickle finds it
    return own


def _check(kernel: Kernel, inputs: Sequence[Any]) -> None:
    """Raises UsageError for inputs that are no dense tensors of one device, and within a transformation that the operators do not have.
    The operators check everything else, once for each shape."""
    name = kernel.name
    if not inputs:
        raise programs.without_inputs(kernel)
    for place, given in enumerate(inputs):
        if not isinstance(given, torch.Tensor):
            raise programs.no_array(kernel, place, f"a {type(given).__name__}", "a tensor")
        if given.layout != torch.strided:
            raise programs.no_array(kernel, place, f"{given.layout}", "a dense tensor")
    device = inputs[0].device
    if device.type not in ("cpu", "cuda") or any(i.device != device for i in inputs):
        devices = ", ".join(dict.fromkeys(str(i.device) for i in inputs))
        raise UsageError(f"{name}: the inputs are on {devices}; expected one device, cpu or cuda")
    if torch.compiler.is_compiling():
        return
    # torch.library would drop tangents without a word
    dual = any(torch.autograd.forward_ad.unpack_dual(i).tangent is not None for i in inputs)
    if dual or torch._C._are_functorch_transforms_active():
        raise UsageError(
            f"{name}: torch.func (grad, vmap, jvp) and forward mode are not supported; torch.autograd.grad and backward() are"
        )


@functools.cache
def _operators(name: str) -> tuple[Any, Any]:
    """fusebench::NAME, inputs → outputs and what is kept for the other one, fusebench::NAME_backward."""
    kernel = kernel_of("triton", name)
    outputs = max(1, len(kernel.mathematics.outputs))
    fixed = {n: i for n, i in enumerate(programs.names_of(kernel, {})) if i not in kernel.mathematics.gradients}

    def forward(inputs: Sequence[torch.Tensor], what: Sequence[str]) -> list[torch.Tensor]:
        return _forward(programs.program(_wanted(name, inputs, what)), inputs)

    def backward(inputs: Sequence[torch.Tensor], made: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor], what: Sequence[str]) -> list[torch.Tensor]:  # fmt: skip
        wanted = _wanted(name, inputs, what)
        return _backward(programs.program(wanted), _places(wanted), inputs, made, upstream)

    def shapes_forward(inputs: Sequence[torch.Tensor], what: Sequence[str]) -> list[torch.Tensor]:
        return _forward(_dry(_wanted(name, inputs, what)), inputs)

    def shapes_backward(inputs: Sequence[torch.Tensor], made: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor], what: Sequence[str]) -> list[torch.Tensor]:  # fmt: skip
        wanted = _wanted(name, inputs, what)
        return _backward(_dry(wanted), _places(wanted), inputs, made, upstream)

    first = torch.library.custom_op(
        f"fusebench::{name}", forward, mutates_args=(), schema="(Tensor[] inputs, str[] what) -> Tensor[]"
    )
    second = torch.library.custom_op(
        f"fusebench::{name}_backward",
        backward,
        mutates_args=(),
        schema="(Tensor[] inputs, Tensor[] made, Tensor[] upstream, str[] what) -> Tensor[]",
    )
    first.register_fake(shapes_forward)
    second.register_fake(shapes_backward)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
        arrays, ctx.what = inputs
        for place, of_input in fixed.items():
            if arrays[place].requires_grad:
                raise programs.without_gradient(name, of_input, f"{of_input}.detach()")
        ctx.count = len(arrays)
        ctx.save_for_backward(*arrays, *output)

    def gradients(ctx: Any, behind: Sequence[torch.Tensor | None]) -> tuple[list[torch.Tensor | None], None]:
        saved = ctx.saved_tensors  # read once: torch.utils.checkpoint allows no more
        inputs, made = saved[: ctx.count], saved[ctx.count :]
        upstream = [
            torch.zeros_like(y) if dy is None else dy.contiguous()
            for y, dy in zip(made, behind[:outputs], strict=False)
        ]
        found = iter(second(list(inputs), list(made), upstream, ctx.what))
        places = _wanted_places(name, inputs, ctx.what)
        by_place = {place: next(found) for place in places}
        return [by_place.get(place) for place in range(ctx.count)], None

    def refuse(*_: Any) -> Any:
        raise programs.without_second_derivative(name)

    first.register_autograd(gradients, setup_context=keep)
    second.register_autograd(refuse)
    return first, second


def _wanted(name: str, inputs: Sequence[torch.Tensor], what: Sequence[str]) -> Wanted:
    precision, *pairs = what
    options = tuple((n, v) for n, _, v in sorted(pair.partition("=") for pair in pairs))
    shapes = tuple(tuple(map(int, i.shape)) for i in inputs)
    dtypes = tuple(str(i.dtype).removeprefix("torch.") for i in inputs)
    device = "cpu" if inputs[0].device.type == "cpu" else "cuda"
    return Wanted(name, "triton", device, shapes, dtypes, precision, options)


@functools.lru_cache(1024)
def _dry(wanted: Wanted) -> Program:
    """The program without its launches: what it makes are arrays of the right shapes."""
    from implementations._shared.triton.launch import without_launching

    with without_launching():
        return programs.built(wanted)


@functools.lru_cache(1024)
def _places(wanted: Wanted) -> Places:
    """Where the residuals are, seen on arrays without memory."""
    inputs = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for shape, dtype in zip(wanted.shapes, wanted.dtypes, strict=True)
    ]
    made = _dry(wanted).forward(*inputs)
    outputs, residuals = _taken(made)
    new = iter(range(len(residuals)))
    places: list[tuple[str, int]] = []
    for residual in residuals:
        of_inputs = [n for n, i in enumerate(inputs) if residual is i]
        of_outputs = [n for n, o in enumerate(outputs) if residual is o]
        places.append(
            (INPUT, of_inputs[0]) if of_inputs else (OUTPUT, of_outputs[0]) if of_outputs else (NEW, next(new))
        )
    return isinstance(made[1], torch.Tensor), tuple(places)


def _wanted_places(name: str, inputs: Sequence[torch.Tensor], what: Sequence[str]) -> tuple[int, ...]:
    return _dry(_wanted(name, inputs, what)).wanted


def _taken(made: tuple[Any, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and residuals as lists."""
    outputs, residuals = ([*part] if isinstance(part, tuple | list) else [part] for part in made)
    return outputs, residuals


def _forward(program: Program, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    outputs, residuals = _taken(program.forward(*inputs))
    known = [*inputs, *outputs]
    return [*outputs, *(r for r in residuals if not any(r is k for k in known))]


def _backward(
    program: Program,
    places: Places,
    inputs: Sequence[torch.Tensor],
    made: Sequence[torch.Tensor],
    upstream: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    sources = {INPUT: inputs, OUTPUT: made, NEW: made[len(upstream) :]}
    alone, each = places
    residuals = tuple(sources[kind][number] for kind, number in each)
    gradients = program.backward(residuals[0] if alone else residuals, *upstream)
    gradients = gradients if isinstance(gradients, tuple | list) else (gradients,)
    given = [*inputs, *made, *upstream]
    return [g.clone() if any(g is known for known in given) else g for g in gradients]
