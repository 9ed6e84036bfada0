"""Launches of CUDA kernels on a machine without a GPU: the program is compiled to PTX, which runs on Torch's CPU tensors.

A launch that is right here may be slow there, and one that is wrong here is wrong there: what a device leaves open is chosen anew for
each call of a launch, from the number of the call.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fusebench.backends.calls import Argument, Fixed, Given, Made
from fusebench.backends.cuda import Program, architecture, compile_ptx
from fusebench.emulator import machine
from fusebench.emulator.arithmetic import converted
from fusebench.emulator.device import MULTIPROCESSORS, THREADS, emulated
from fusebench.emulator.memory import POISON, Region, of_pointer
from fusebench.emulator.translations import Translation, translation

SWIZZLED = (128, 64, 32)  # bytes of a box's rows of which the copy engine exchanges chunks
WAVE = MULTIPROCESSORS * THREADS  # threads that run at once
# tensors by address, as long as they live: kernels get addresses in them, too
_seen: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# those that launches have written since the last one that did not overlap
_fresh: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def straight(
    program: Program, sizes: tuple[Any, int, int], arguments: Sequence[Argument], overlaps: bool = False
) -> Callable[..., Any]:
    """A function of the given tensors, on the CPU, and numbers, which runs the program and returns what it made: what `backends.calls.straight` is on a
    GPU. `sizes` are the grid, the block and the shared memory of a launch. Outputs begin as NaN. Raises machine.Fault for what a
    device would not do, and for a launch that `overlaps` the one before and does not wait for it; ValueError for a tensor that is not contiguous."""
    launch = _Launch(program, *sizes, overlaps=overlaps)

    def call(*given: Any) -> Any:
        rest, made, passed = iter(given), [], []
        if not launch.overlaps:
            _fresh.clear()
        for place, argument in enumerate(arguments):
            if isinstance(argument, Made):
                made.append(_poisoned(argument))
                passed.append(_address(made[-1]))
            elif isinstance(argument, Given):
                passed.append(_taken(place, argument, next(rest)))
            else:
                passed.append(argument.value if isinstance(argument, Fixed) else next(rest))
        before = [(a, region(_seen[a]).memory.copy()) for a in passed if isinstance(a, int) and a in _seen]
        with np.errstate(all="ignore"):
            launch.run(passed, [region(t) for t in _seen.values() if t.numel()])
        _fresh.update({a: _seen[a] for a, bytes_ in before if not np.array_equal(bytes_, region(_seen[a]).memory)})
        return made[0] if len(made) == 1 else tuple(made) if made else None

    return call


def _taken(place: int, argument: Given, tensor: Any) -> Any:
    """What the kernel gets for a tensor: its address or its map."""
    if not tensor.is_contiguous():
        raise ValueError(f"argument {place} is not contiguous; pass a copy of it")
    address = _address(tensor)
    return TensorMap(tensor, argument.box, argument.tf32, address in _fresh) if argument.box else address


def _address(tensor: Any) -> int:
    """Of a tensor, which kernels may read and write from now on."""
    address: int = tensor.data_ptr()
    known = _seen.get(address)
    if known is None or known.nbytes < tensor.nbytes:
        _seen[address] = tensor
    return address


def _poisoned(argument: Made) -> Any:
    import torch

    made = torch.empty(argument.shape, dtype=argument.dtype)
    region(made).memory[:] = POISON
    return made


class _Launch:
    """A program with its grid and the sizes of a block. `calls` are those that were made: each has another order."""

    def __init__(self, program: Program, grid: Any, block: int, shared_memory: int, *, overlaps: bool):
        own = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
        self.program, self.grid, self.block = program, (*own, *(1,) * (3 - len(own))), block
        self.shared_memory, self.calls = shared_memory, 0
        self.overlaps = overlaps and emulated().capability >= (9, 0)

    def run(self, arguments: Sequence[Any], regions: Sequence[Region]) -> None:
        """The grid, in waves."""
        arch = architecture(emulated().capability)
        kernel = translation_of(self.program, arch)
        if self.overlaps and not self.calls and kernel.early:
            number, line = kernel.early
            file = kernel.files.get(number, "").rpartition("/")[2]
            raise machine.Fault(
                f"{file}:{line}: {self.program.name} may begin while the launch before it ends, and touches global memory before "
                "griddepcontrol.wait"
            )
        threads_of_block = -(-self.block // 32) * 32
        cluster, blocks = kernel.cluster, math.prod(self.grid)
        if blocks % cluster:
            raise machine.Fault(f"{self.program.name}: {blocks} blocks are no multiple of a cluster's {cluster}")
        wave = max(WAVE // threads_of_block // cluster, 1) * cluster
        self.calls += 1
        for first in range(0, blocks, wave):
            threads = min(wave, blocks - first) * threads_of_block
            program, random = _translated(self.program, arch, threads), np.random.default_rng((self.calls, first))
            machine.Machine(program, self.grid, first, self.block, self.shared_memory, arguments, regions, random).run()


class TensorMap:
    """How the copy engine sees a tensor: the sizes of its box, outermost first, as `backends.tensor_maps.TensorMap` takes them. `fresh`: a
    launch that may not have ended writes it."""

    def __init__(self, tensor: Any, box: tuple[int, ...], tf32: bool, fresh: bool):
        leading = tensor.dim() - len(box) + 1
        shape = (math.prod(tensor.shape[:leading]), *tensor.shape[leading:])
        if len(box) > 1 and shape[-1] * tensor.element_size() % 16:
            raise machine.Fault(f"the driver makes no tensor map of {shape}: its rows are no whole vectors of 16 bytes")
        self.elements = region(tensor).memory.view(f"u{tensor.element_size()}").reshape(shape)
        self.box, self.tf32, self.fresh = box, tf32, fresh
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


@lru_cache(maxsize=64)
def translation_of(program: Program, arch: str) -> Translation:
    """The program's kernel in Python. Raises CompileError."""
    name = program.name.partition("<")[0].rpartition("::")[2]
    return translation(compile_ptx(program.file, arch, program.name, program.defines), name)


@lru_cache(maxsize=64)
def _translated(program: Program, arch: str, threads: int) -> machine.Program:
    """Kept, as launches of one program in many cells differ in what they are given alone."""
    return machine.Program(translation_of(program, arch), threads)


def region(tensor: Any) -> Region:
    """The memory of a contiguous Torch tensor on the CPU."""
    found = of_pointer(tensor.data_ptr(), tensor.numel() * tensor.element_size(), f"a tensor {tuple(tensor.shape)}")
    found.fresh = tensor.data_ptr() in _fresh
    return found
