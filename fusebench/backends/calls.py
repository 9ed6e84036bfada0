"""The call of a kernel as straight-line Python, written for its arguments.

What a call costs the calling thread beside the driver's own time is Python's: loops over arguments, lookups and allocation. So the
text of a call is put together once, when it is known which of its arguments are tensors, outputs and numbers. It checks every
tensor, writes their pointers into memory that the driver reads (parameters.py), and queues the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusebench.backends.parameters import Parameters
from fusebench.backends.stand_ins import Address, StandIn, Step, Untraceable, steps_of

ALIGNMENT = 16  # bytes: kernels take memory in such vectors


@dataclass(frozen=True)
class Given:
    """A tensor of this dtype, which the caller hands over. Its `box` is set where it reaches the kernel as a tensor map, whose float32
    is rounded to `tf32` on the way."""

    dtype: Any
    box: tuple[int, ...] | None = None
    tf32: bool = False


@dataclass(frozen=True)
class Made:
    """A tensor that the call makes and returns."""

    dtype: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Number:
    """What the caller hands over and is no tensor."""


@dataclass(frozen=True)
class Fixed:
    """What is the same in all calls."""

    value: Any


Argument = Given | Made | Number | Fixed


def straight(
    arguments: Sequence[Argument],
    kept: Mapping[int, list[Parameters]],
    other: Callable[..., Any],
    name: str,
) -> Callable[..., Any]:
    """A function of the given tensors and numbers, in order, which queues the launch that `kept` has for the device of its first
    tensor, on Torch's current stream there, and returns what it made. A call takes its parameters from `kept` and gives them back, so
    that threads never share them.

    `other(*given)` is the result where a tensor is not as it should be (its dtype, the device of the first one, contiguous, at a
    multiple of 16 bytes), where the first one's device is not the current one, and where `kept` has nothing or other numbers. Raises
    RuntimeError with the `name` where the driver refuses.
    """

    def unusual(*given: Any) -> Any:
        """Where the call is not as the last ones were, or is only followed."""
        steps = steps_of(given)
        return other(*given) if steps is None else _noted(arguments, given, kept, name, steps)

    names: dict[str, Any] = {"kept": kept, "other": unusual, "name": name, **of_the_driver()}
    checks, pointers, writes, numbers, maps, made = [], [], [], [], [], []
    passed = [f"a{p}" for p, argument in enumerate(arguments) if isinstance(argument, Given | Number)]
    for p, argument in enumerate(arguments):
        if isinstance(argument, Given):
            checks += [f"a{p}.dtype is d{p}", f"a{p}.get_device() == index", f"a{p}.is_contiguous()"]
            pointers.append(f"(p{p} := a{p}.data_ptr())")
            writes.append(f"values[{p}] = p{p}")
            names[f"d{p}"] = argument.dtype
            if argument.box:
                maps += [f"of = own.maps[{p}]", f"if of.shape != a{p}.shape:", f"    of.describe(p{p}, a{p}.shape)",
                         f"of.tensor[0] = p{p}"]  # fmt: skip
        elif isinstance(argument, Made):
            made.append(f"y{p}")
            names |= {f"s{p}": tuple(argument.shape), f"t{p}": strides_of(argument.shape), f"d{p}": argument.dtype}
            writes += [f"y{p} = empty(s{p}, t{p}, d{p})", f"values[{p}] = y{p}.data_ptr()"]
        elif isinstance(argument, Number):
            numbers += [f"if a{p} is not own.numbers[{p}] and not own.write({p}, a{p}):",
                        f"    return other({', '.join(passed)})"]  # fmt: skip
    first = next(p for p, argument in enumerate(arguments) if isinstance(argument, Given))
    checks.remove(f"a{first}.get_device() == index")
    queued = queueing("own", [("own.config, own.function, own.address", "own", "name")])
    lines = ["values = own.values", *writes, *numbers, *maps, *queued]
    taken, what = ", ".join(passed), f"<a call of {len(arguments)} arguments>"
    return compiled(taken, f"a{first}", checks, pointers, lines, ", ".join(made) or "None", names, what)


def compiled(
    taken: str,
    first: str,
    checks: Sequence[str],
    pointers: Sequence[str],
    lines: Sequence[str],
    result: str,
    names: dict[str, Any],
    what: str,
    unpacking: Iterable[str] = (),
) -> Callable[..., Any]:
    """A function of the arguments `taken`, of which the tensor `first` is one after the lines of `unpacking`. It takes `own` from what is kept for that
    one's device, follows the `lines`, gives `own` back and returns the `result`; `other`, among the `names`, is called where the device is not the
    current one, nothing is kept, one of the `checks` does not hold, or one of the `pointers` is at no multiple of 16 bytes. `what` names it in a
    traceback."""
    text = [
        f"def call({taken}):",
        "    own = None",
        "    try:",
        *(f"        {line}" for line in unpacking),
        f"        index = {first}.get_device()",
        f"        if {' and '.join(['index == current_device()', *checks])} and not ({' | '.join(pointers)}) & {ALIGNMENT - 1}:",
        "            free = kept[index]",
        "            own = free.pop()",
        "    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # other arguments, or nothing is kept",
        "        pass",
        "    if own is None:",
        f"        return other({taken})",
        *(f"    {line}" for line in lines),
        "    free.append(own)",
        f"    return {result}",
    ]
    exec(compile("\n".join(text), what, "exec"), names)
    call: Callable[..., Any] = names["call"]
    return call


def queueing(state: str, launches: Iterable[tuple[str, str, str]]) -> list[str]:
    """Lines that queue launches on Torch's current stream, which `state` is told: for each what the driver takes, its parameters, and its name."""
    lines = ["stream = raw_stream(index)", f"if stream != {state}.stream:", f"    {state}.queue_on(stream)"]
    for taken, parameters, name in launches:
        lines += [f"(error,) = launch({taken}, 0)", "if error:", f"    failed(error, index, {parameters}, {name})"]
    return lines


def of_the_driver() -> dict[str, Any]:
    """What the text of a call uses of Torch and of the driver, by its names there."""
    import torch
    from cuda.bindings.driver import cuLaunchKernelEx

    return {
        "failed": _failed, "empty": _empty(torch), "launch": cuLaunchKernelEx, "byte": torch.uint8,
        "current_device": torch._C._cuda_getDevice, "raw_stream": torch._C._cuda_getCurrentRawStream,
    }  # fmt: skip


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a contiguous tensor of that shape."""
    import torch

    return torch.empty(tuple(shape), device="meta").stride()


def _noted(
    arguments: Sequence[Argument],
    given: Sequence[Any],
    kept: Mapping[int, list[Parameters]],
    name: str,
    steps: list[Step],
) -> Any:
    """Adds the launch to those of a call that is followed (stand_ins.py), and returns stand-ins for what it makes. Raises Untraceable for a
    tensor of another dtype, which the launch would refuse or recompile for."""
    rest, outputs = iter(given), []
    tensors: dict[int, Address] = {}
    numbers: dict[int, Any] = {}
    maps: dict[int, Any] = {}
    for place, argument in enumerate(arguments):
        if isinstance(argument, Made):
            outputs.append(StandIn(argument.dtype, argument.shape, steps))
            tensors[place] = outputs[-1].data_ptr()
        elif isinstance(argument, Given):
            tensor = next(rest)
            if not isinstance(tensor, StandIn) or tensor.dtype is not argument.dtype:
                raise Untraceable(f"{name} is given {tensor!r}")
            tensors[place] = tensor.data_ptr()
            if argument.box:
                maps[place] = tensor.shape
        elif isinstance(argument, Number):
            number = next(rest)
            (tensors if isinstance(number, Address) else numbers)[place] = number
    steps.append(Step(tensors, maps, numbers, kept, name))
    return tuple(outputs) if len(outputs) > 1 else outputs[0] if outputs else None


@dataclass(frozen=True)
class Arrived:
    """A call that is not as the last ones were: its first tensor and that one's device; its arguments, None for those that it makes; the
    same with 0 for every tensor; and why they are unusual: a tensor of another dtype, or at no multiple of 16 bytes, in one line."""

    first: Any
    index: int
    values: list[Any]
    numbers: list[Any]
    unusual: str | None


def arrived(arguments: Sequence[Argument], given: Sequence[Any]) -> Arrived:
    """What a call was given. Raises ValueError for tensors that no kernel takes: on the CPU, on several devices, or not contiguous."""
    import torch

    rest, index, unusual = iter(given), -1, None
    first: Any = None
    values: list[Any] = []
    for place, argument in enumerate(arguments):
        value: Any = (
            argument.value if isinstance(argument, Fixed) else None if isinstance(argument, Made) else next(rest)
        )
        values.append(value)
        if isinstance(argument, Given):
            _check(place, value, index if first is not None else None)
            if first is None:
                first, index = value, value.get_device()
            unusual = unusual or _unusual(place, value, argument.dtype)
    numbers = [
        0 if isinstance(argument, Made) or isinstance(value, torch.Tensor) else value
        for value, argument in zip(values, arguments, strict=True)
    ]
    return Arrived(first, index, values, numbers, unusual)


def _check(place: int, tensor: Any, index: int | None) -> None:
    """Raises ValueError as `arrived` does; `index` is the device of the first tensor, None where this is it."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"argument {place} is {tensor!r}; expected a tensor")
    if index is None and tensor.get_device() < 0:
        raise ValueError("the first tensor is on the CPU: expected one on a GPU")
    if index is not None and tensor.get_device() != index:
        raise ValueError(f"argument {place} is on {tensor.device}, the first one on cuda:{index}")
    if not tensor.is_contiguous():
        raise ValueError(f"argument {place} is not contiguous; pass a copy of it")


def _unusual(place: int, tensor: Any, dtype: Any) -> str | None:
    if tensor.dtype is not dtype:
        return f"argument {place} is {tensor.dtype}; the kernel takes {dtype}"
    if tensor.data_ptr() % ALIGNMENT:
        return f"argument {place} does not start at a multiple of {ALIGNMENT} bytes; pass a copy of it"
    return None


def _failed(error: Any, index: int, parameters: Parameters, name: str) -> None:
    """A thread that has not used the device yet has no context, which only the driver minds. Raises RuntimeError for any other error."""
    from cuda.bindings import driver

    if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        _, context = driver.cuDevicePrimaryCtxRetain(driver.CUdevice(index))
        driver.cuCtxSetCurrent(context)
        (error,) = driver.cuLaunchKernelEx(parameters.config, parameters.function, parameters.address, 0)
    if error:
        raise RuntimeError(f"{name} was not launched ({error.name})")


def _empty(torch: Any) -> Callable[..., Any]:
    """empty(shape, strides, dtype) on the current device. What the code that torch.compile writes calls takes half the time of
    `torch.empty`; it is no public name."""
    quick = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)
    return quick or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda"))
