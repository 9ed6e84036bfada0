"""What the Triton implementations of all kernels share: the description of a launch.

A `_triton_kernels.py` holds the @triton.jit bodies of its kernel, its tunables, and `launches(case, variant, device, config)`:
what a call of that variant launches, in order. triton.py and jax_triton.py run from it, and tools compile from it without a GPU.
"""

import functools
from contextlib import contextmanager
from typing import Any, NamedTuple

from triton.runtime.jit import JITFunction

# storage dtype → Triton's type of a pointer to it
TYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}


_dry: list[bool] = []  # something where launches are bound to nothing


class Launch(NamedTuple):
    """One launch of a kernel, enough to compile it ahead of time and to run it."""

    kernel: Any
    signature: dict[str, str]  # the run-time arguments in order, outputs last, with their Triton types
    constexprs: dict[str, Any]  # the compile-time arguments
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int

    def bind(self):
        """A function of the run-time arguments alone, with everything else settled beforehand."""
        if _dry:
            return _nothing
        options = self.constexprs | {"num_warps": self.num_warps, "num_stages": self.num_stages}
        queue = functools.partial(self.kernel[self.grid], **options)
        if not isinstance(self.kernel, JITFunction):  # in Triton's interpreter
            return queue
        parameters = list(self.kernel.signature.parameters.values())[len(self.signature) :]
        return Frozen(queue, self.grid, [self.constexprs.get(p.name, p.default) for p in parameters])


class Frozen:
    """A launch that keeps the compiled kernel: `frozen(*arguments)` queues it on Torch's current stream of the first tensor's
    device. `queue` looks the kernel up in every call, which takes Triton 20 µs; here it does so in the first call on a device, and
    again where dtypes or numbers are others than in the call before, or a tensor does not start at a multiple of 16 bytes, which
    is what Triton compiles different code for. Triton's launch hooks see those calls alone.

    `constants` are the values of the kernel's last parameters, its constexprs. Arguments are tensors, at the same places in every
    call, or numbers. Raises ValueError for a tensor that is not contiguous, and where tensors are on different devices.
    """

    def __init__(self, queue, grid, constants):
        import torch

        self._queue, self._grid, self._constants = queue, (*grid, 1, 1)[:3], tuple(constants)
        self._torch, self._kept = torch, {}  # by device
        self._first = None  # the place of the first tensor
        self._current_device, self._raw_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

    def __call__(self, *arguments):
        first = self._find_first(arguments) if self._first is None else self._first
        index = arguments[first].get_device()
        if index != self._current_device():
            return self._elsewhere(index, arguments)
        if index not in self._kept:
            return self._look_up(index, arguments)
        run, function, metadata, tensors, numbers = self._kept[index]
        for place, number in numbers:
            given = arguments[place]
            if given is not number and (type(given) is not type(number) or given != number):
                return self._look_up(index, arguments)
        values, bits = list(arguments), 0
        for place, dtype in tensors:
            tensor = arguments[place]
            if tensor.dtype is not dtype or tensor.get_device() != index or not tensor.is_contiguous():
                return self._look_up(index, arguments)
            values[place] = pointer = tensor.data_ptr()
            bits |= pointer
        if bits & 15:
            return self._look_up(index, arguments)
        run(*self._grid, self._raw_stream(index), function, metadata, None, None, None, *values, *self._constants)

    def _elsewhere(self, index, arguments):
        """The same while device `index` is the current one, which is where Triton launches."""
        if index < 0:
            raise ValueError("the first tensor is on the CPU: expected one on a GPU")
        with self._torch.cuda.device(index):
            self(*arguments)

    def _find_first(self, arguments):
        self._first = next(place for place, a in enumerate(arguments) if isinstance(a, self._torch.Tensor))
        return self._first

    def _look_up(self, index, arguments):
        """Queues the launch as Triton does, and keeps what it found for calls with such arguments."""
        tensors = [(place, a) for place, a in enumerate(arguments) if isinstance(a, self._torch.Tensor)]
        for place, tensor in tensors:
            if tensor.get_device() != index:
                raise ValueError(f"argument {place} is on {tensor.device}, the first one on cuda:{index}")
            if not tensor.is_contiguous():
                raise ValueError(f"argument {place} is not contiguous; pass a copy of it")
        compiled = self._queue(*arguments)
        if not any(tensor.data_ptr() & 15 for _, tensor in tensors):
            dtypes = tuple((place, tensor.dtype) for place, tensor in tensors)
            numbers = tuple((p, a) for p, a in enumerate(arguments) if not isinstance(a, self._torch.Tensor))
            self._kept[index] = compiled.run, compiled.function, compiled.packed_metadata, dtypes, numbers


def _nothing(*arguments):
    pass


@contextmanager
def without_launching():
    """Within it `bind` gives functions that do nothing: what is built then makes its outputs, and leaves them as they are. So
    torch.compile learns their shapes."""
    _dry.append(True)
    try:
        yield
    finally:
        _dry.pop()


def launch_with(config, kernel, signature, constexprs, grid):
    """The launch with a config: its warps, its stages (1 where it has none), and what else it has as compile-time arguments."""
    tile = dict(config)
    num_warps, num_stages = tile.pop("num_warps"), tile.pop("num_stages", 1)
    return Launch(kernel, signature, constexprs | tile, grid, num_warps, num_stages)


def prefixed(configs):
    """The tunables of several launches as those of one variant: {"down": {"BLOCK_M": 16}} becomes {"down_BLOCK_M": 16}."""
    return {f"{launch}_{name}": value for launch, config in configs.items() for name, value in config.items()}


def by_launch(config):
    """What `prefixed` was given."""
    configs = {}
    for name, value in config.items():
        launch, tunable = name.split("_", 1)
        configs.setdefault(launch, {})[tunable] = value
    return configs
