"""Triton kernels queued as CUDA ones are: the compiled kernel is kept, and launched without Triton's own launcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusebench.backends.calls import Argument, Fixed, Given, Made, Number, arrived, straight
from fusebench.backends.parameters import Parameters

DTYPES = {"*fp32": "float32", "*fp16": "float16", "*bf16": "bfloat16", "*i32": "int32", "*i64": "int64"}
# bytes of a number
SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u1": 1, "u8": 1, "u16": 2, "u32": 4, "u64": 8, "fp32": 4}
# of a compiled kernel's metadata, what a launch would have to see to
SPECIAL = (
    "launch_cooperative_grid", "launch_cluster", "launch_pdl", "global_scratch_size", "profile_scratch_size", "tensordesc_meta"
)  # fmt: skip


class TritonLauncher:
    """A Triton kernel with its grid and compile-time arguments: `launcher(*arguments)` queues it on Torch's current stream of the
    first tensor's device. `queue(*arguments)` is Triton's own launch, which looks the kernel up in every call: that takes 20 µs. Here it
    does so in the first call on a device, and again where dtypes or numbers are others than in the call before, or a tensor does not
    start at a multiple of 16 bytes, which is what Triton compiles different code for. Triton's launch hooks see those calls alone.

    Arguments are tensors, at the same places in every call, or numbers. Raises ValueError for a tensor that is not contiguous, and where
    tensors are on different devices.
    """

    def __init__(self, queue: Callable[..., Any], grid: tuple[int, ...]):
        import torch

        self._torch, self._queue, self._grid = torch, queue, grid
        self._call: Callable[..., Any] | None = None  # the first call shows what the arguments are

    def __call__(self, *arguments: Any) -> None:
        if self._call is None:
            tensor = self._torch.Tensor
            self._call = self._straight([Given(a.dtype) if isinstance(a, tensor) else Number() for a in arguments])
        self._call(*arguments)

    def returning(self, types: Sequence[str], shapes: Sequence[tuple[int, ...]], numbers: Sequence[Any]) -> Callable[..., Any]:  # fmt: skip
        """A function of the tensors but the last ones, of these shapes, which it makes and returns. `types` are Triton's, of all arguments;
        those that are no pointers are the `numbers`."""
        rest, outputs = iter(numbers), len(types) - len(shapes)
        arguments: list[Argument] = []
        for place, name in enumerate(types):
            if name not in DTYPES:
                arguments.append(Fixed(next(rest)))
                continue
            dtype = getattr(self._torch, DTYPES[name])
            arguments.append(Made(dtype, shapes[place - outputs]) if place >= outputs else Given(dtype))
        return self._straight(arguments)

    def _straight(self, arguments: Sequence[Argument]) -> Callable[..., Any]:
        kept: dict[int, list[Parameters]] = {}
        compiled: dict[int, Any] = {}  # by device: its code is there as long as it is
        torch = self._torch

        def other(*given: Any) -> Any:
            """Queues the launch as Triton does, and keeps what it found for calls with such arguments."""
            came = arrived(arguments, given)
            index, values = came.index, came.values
            if index != torch.cuda.current_device():
                with torch.cuda.device(index):  # where Triton launches
                    return call(*given)
            for place, argument in enumerate(arguments):
                if isinstance(argument, Made):
                    values[place] = came.first.new_empty(argument.shape, dtype=argument.dtype)
            found = self._queue(*values)
            if not came.unusual:
                compiled[index], kept[index] = found, frozen(found, came.numbers, self._grid)
            made = [value for value, argument in zip(values, arguments, strict=True) if isinstance(argument, Made)]
            return tuple(made) if len(made) > 1 else made[0] if made else None

        call = straight(arguments, kept, other, "a kernel of Triton")
        return call


class Frozen(Parameters):
    """Those of code that was compiled for these numbers."""

    __slots__ = ()

    def write(self, place: int, number: Any) -> bool:
        """Whether the number is that of the last launch: another one may need other code."""
        old = self.numbers[place]
        if type(number) is not type(old) or number != old:
            return False
        super().write(place, narrowed(number))
        self.numbers[place] = number
        return True


def frozen(compiled: Any, numbers: Sequence[Any], grid: tuple[int, ...]) -> list[Parameters]:
    """The parameters of a compiled kernel, for arguments with 0 in the place of each tensor. None where a launch takes more than these: then
    Triton launches it in every call."""
    from cuda.bindings.driver import CUfunction

    metadata, types = compiled.metadata, [*compiled.src.signature.values()]
    places = [place for place, name in enumerate(types) if name != "constexpr"]
    if metadata.num_ctas != 1 or any(getattr(metadata, name, None) for name in SPECIAL) or any(place >= len(numbers) for place in places):  # fmt: skip
        return []
    expected = [SIZES.get(types[place], 8 if types[place].startswith("*") else 0) for place in places]
    function = CUfunction(compiled.function)
    sizes = parameter_sizes(function)
    scratch = sizes[len(places) :]  # which Triton adds, null where a kernel needs none
    if sizes[: len(places)] != expected or scratch != [8] * len(scratch):
        return []
    block = 32 * metadata.num_warps
    parameters = Frozen(function, [*map(narrowed, numbers), 0], grid, block, metadata.shared)
    parameters.numbers[:-1] = numbers
    parameters.point_to([*places, *[len(numbers)] * len(scratch)])
    return [parameters]


def parameter_sizes(function: Any) -> list[int]:
    """The bytes of each of a kernel's parameters, by the driver."""
    from cuda.bindings.driver import cuFuncGetParamInfo

    sizes: list[int] = []
    while True:
        error, _, size = cuFuncGetParamInfo(function, len(sizes))
        if error:
            return sizes
        sizes.append(size)


def narrowed(number: Any) -> Any:
    """As Triton passes it: a float as float32, None not at all."""
    return 0 if number is None else np.float32(number) if isinstance(number, float) else number
