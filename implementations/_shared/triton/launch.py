"""What the Triton implementations of all kernels share: the description of a launch.

A `_triton_kernels.py` holds the @triton.jit bodies of its kernel, its tunables, and `launches(case, variant, device, config)`:
what a call of that variant launches, in order. triton.py and jax_triton.py run from it, and tools compile from it without a GPU.
"""

import functools
from contextlib import contextmanager
from typing import Any, NamedTuple

from triton.runtime.jit import JITFunction

from fusebench.launchers import TritonLauncher

# storage dtype → Triton's type of a pointer to it
TYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}
DTYPES = {kind: dtype for dtype, kind in TYPES.items()}


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
        return _nothing if _dry else TritonLauncher(self._queue(), self.grid) if self._is_compiled() else self._queue()

    def returning(self, *shapes, **numbers):
        """A function of the tensors but the last ones, of these shapes, which it makes and returns; the numbers are the same in all calls."""
        if not _dry and self._is_compiled():
            given = [numbers[name] for name in self.signature if name in numbers]
            return TritonLauncher(self._queue(), self.grid).returning(list(self.signature.values()), shapes, given)
        return self._made_apart(shapes, numbers)

    def _made_apart(self, shapes, numbers):
        """`returning` where Triton interprets, or nothing is launched."""
        import torch

        run, outputs = self.bind(), [*self.signature.items()][len(self.signature) - len(shapes) :]
        dtypes = [getattr(torch, DTYPES[kind]) for _, kind in outputs]

        def call(*tensors):
            if not all(tensor.is_contiguous() for tensor in tensors):
                raise ValueError("an array is not contiguous; pass a copy of it")
            made = [tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
            rest = iter((*tensors, *made))
            run(*(numbers[name] if name in numbers else next(rest) for name in self.signature))
            return made[0] if len(made) == 1 else tuple(made)

        return call

    def _queue(self):
        options = self.constexprs | {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return functools.partial(self.kernel[self.grid], **options)

    def _is_compiled(self):
        return isinstance(self.kernel, JITFunction)  # and not interpreted


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
