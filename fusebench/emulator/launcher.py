"""Launches of CUDA kernels on a machine without a GPU: the program is compiled to PTX, which runs on Torch's CPU tensors.

A launch that is right here may be slow there, and one that is wrong here is wrong there: what a device leaves open is chosen anew for
each call of a launcher, from the number of the call.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fusebench.backends.cuda import Program, architecture, compile_ptx
from fusebench.emulator import machine, ptx
from fusebench.emulator.arithmetic import converted
from fusebench.emulator.device import MULTIPROCESSORS, THREADS, emulated
from fusebench.emulator.memory import POISON, Region, of_pointer

SWIZZLED = (128, 64, 32)  # bytes of a box's rows of which the copy engine exchanges chunks
WAVE = MULTIPROCESSORS * THREADS  # threads that run at once
_seen: weakref.WeakValueDictionary[int, Any] = (
    weakref.WeakValueDictionary()
)  # tensors by address: kernels get addresses in them, too


class Launcher:
    """As `backends.cuda.Launcher`, on the CPU. Outputs begin as NaN. Raises machine.Fault for what a device would not do."""

    def __init__(
        self,
        program: Program,
        grid: Any,
        block: int,
        shared_memory: int = 0,
        boxes: Sequence[tuple[int, ...]] = (),
        dtypes: Sequence[str] = (),
    ):
        own = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
        self.program, self.grid, self.block, self.shared_memory = (
            program,
            (*own, *(1,) * (3 - len(own))),
            block,
            shared_memory,
        )
        self.boxes, self.dtypes, self.calls = tuple(boxes), tuple(dtypes), 0
        self._programs: dict[int, machine.Program] = {}  # by their threads

    def __call__(self, *arguments: Any) -> None:
        import torch

        given = []
        for place, argument in enumerate(arguments):
            if not isinstance(argument, torch.Tensor):
                given.append(argument)
                continue
            if not argument.is_contiguous():
                raise ValueError(f"argument {place} is not contiguous; pass a copy of it")
            known = _seen.get(argument.data_ptr())
            if known is None or known.nbytes < argument.nbytes:
                _seen[argument.data_ptr()] = argument
            box = self.boxes[place] if place < len(self.boxes) else None
            tf32 = place < len(self.dtypes) and self.dtypes[place] == "tf32"
            given.append(TensorMap(argument, box, tf32) if box else argument.data_ptr())
        with np.errstate(all="ignore"):
            self._run(given, [region(t) for t in _seen.values() if t.numel()])

    def returning(
        self, outputs: Mapping[int, tuple[int, ...]], numbers: Sequence[Any] = (), absent: Sequence[int] = ()
    ) -> Callable[..., Any]:
        """As that of `backends.cuda.Launcher`."""
        import torch

        def call(*given: Any) -> Any:
            rest, made, arguments = iter(given), [], []
            for place, name in enumerate(self.dtypes):
                if place in outputs:
                    made.append(
                        torch.empty(outputs[place], dtype=getattr(torch, "float32" if name == "tf32" else name))
                    )
                    region(made[-1]).memory[:] = POISON
                arguments.append(made[-1] if place in outputs else 0 if place in absent else next(rest))
            self(*arguments, *numbers)
            return made[0] if len(made) == 1 else tuple(made) if made else None

        return call

    def _run(self, arguments: Sequence[Any], regions: Sequence[Region]) -> None:
        """The grid, in waves."""
        kernel = kernel_of(self.program, architecture(emulated().capability))
        threads_of_block = -(-self.block // 32) * 32
        cluster, blocks = kernel.cluster, math.prod(self.grid)
        if blocks % cluster:
            raise machine.Fault(f"{self.program.name}: {blocks} blocks are no multiple of a cluster's {cluster}")
        wave = max(WAVE // threads_of_block // cluster, 1) * cluster
        self.calls += 1
        for first in range(0, blocks, wave):
            threads = min(wave, blocks - first) * threads_of_block
            if threads not in self._programs:
                self._programs[threads] = machine.Program(kernel, threads)
            random = np.random.default_rng((self.calls, first))
            machine.Machine(
                self._programs[threads], self.grid, first, self.block, self.shared_memory, arguments, regions, random
            ).run()


class TensorMap:
    """How the copy engine sees a tensor: the sizes of its box, outermost first, as `backends.tensor_maps.TensorMaps` takes them."""

    def __init__(self, tensor: Any, box: tuple[int, ...], tf32: bool):
        leading = tensor.dim() - len(box) + 1
        shape = (math.prod(tensor.shape[:leading]), *tensor.shape[leading:])
        self.elements = region(tensor).memory.view(f"u{tensor.element_size()}").reshape(shape)
        self.box, self.tf32 = box, tf32
        row = box[-1] * tensor.element_size()
        self.chunks = row // 16 if row in SWIZZLED else 1  # of a row, that change places

    def box_at(self, start: Sequence[int]) -> Any:
        """The bytes of the box at these coordinates, the innermost first; what lies outside is 0."""
        found = np.zeros(self.box, self.elements.dtype)
        own, there = [], []
        for first, size, count in zip(start[::-1], self.box, self.elements.shape, strict=True):
            low, high = max(first, 0), max(min(first + size, count), max(first, 0))
            own.append(slice(low - first, high - first))
            there.append(slice(low, high))
        found[tuple(own)] = self.elements[tuple(there)]
        if self.tf32:
            found = converted(found.view(np.float32), "tf32", "f32", ())
        return np.ascontiguousarray(found).view(np.uint8).reshape(-1)


@lru_cache(maxsize=8)
def kernel_of(program: Program, arch: str) -> ptx.Kernel:
    """The program's kernel in PTX. Raises CompileError."""
    name = program.name.partition("<")[0].rpartition("::")[2]
    return ptx.read(compile_ptx(program.file, arch, program.name, program.defines), name)


def region(tensor: Any) -> Region:
    """The memory of a contiguous Torch tensor on the CPU."""
    return of_pointer(tensor.data_ptr(), tensor.numel() * tensor.element_size(), f"a tensor {tuple(tensor.shape)}")
