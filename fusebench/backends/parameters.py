"""What the driver takes of a launch, made once and rewritten: the configuration and the memory of the parameters."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusebench.backends.tensor_maps import TensorMap


class Parameters:
    """The memory of one launch at a time: 8 bytes for each argument, the address of each, and the configuration.

    `address` is what `cuLaunchKernelEx` takes for its parameters; a null pointer ends them. An argument of more than 8 bytes lies
    elsewhere, and its entry of `addresses` says where.
    """

    __slots__ = ("address", "addresses", "config", "function", "maps", "numbers", "stream", "values")

    def __init__(
        self,
        function: Any,
        numbers: Sequence[Any],
        grid: Any,
        block: int,
        shared_memory: int,
        maps: Mapping[int, TensorMap] | None = None,
        overlaps: bool = False,
    ):
        """`numbers` are the arguments, with 0 for those whose values or addresses are written before each launch; `maps` are of
        the arguments at these places; `overlaps` lets the launch begin while the one before it in the stream ends."""
        from cuda.bindings.driver import CUlaunchConfig, CUstream

        self.function, self.numbers, self.maps = function, list(numbers), maps or {}
        self.values = (ctypes.c_int64 * len(numbers))(*map(bits_of, numbers))
        self.point_to(range(len(numbers)))
        for place, tensor_map in self.maps.items():
            self.addresses[place] = tensor_map.address
        self.config, self.stream = CUlaunchConfig(), 0
        sizes = (*grid, 1, 1)[:3] if isinstance(grid, tuple) else (grid, 1, 1)
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = sizes
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = block, 1, 1
        self.config.sharedMemBytes, self.config.numAttrs = shared_memory, 0
        self.config.hStream = CUstream(0)
        if overlaps:
            self.config.attrs, self.config.numAttrs = [_beside_the_end()], 1

    def point_to(self, places: Sequence[int]) -> None:
        """The kernel's parameters are the arguments at these places."""
        start = ctypes.addressof(self.values)
        self.addresses = (ctypes.c_void_p * (len(places) + 1))(*[start + 8 * place for place in places], None)
        self.address = ctypes.addressof(self.addresses)

    def target(self, place: int) -> tuple[Any, int]:
        """The memory, and the place in it, that the address of a tensor is written to."""
        return (self.maps[place].tensor, 0) if place in self.maps else (self.values, place)

    def write(self, place: int, number: Any) -> bool:
        """Another number than the last launch's. Whether the kernel takes it."""
        self.values[place], self.numbers[place] = bits_of(number), number
        return True

    def queue_on(self, stream: int) -> None:
        """Another stream than the last launch's, by its pointer."""
        from cuda.bindings.driver import CUstream

        self.config.hStream, self.stream = CUstream(stream), stream


def _beside_the_end() -> Any:
    """The attribute of programmatic dependent launch: the kernel itself waits for the launch before it, by griddepcontrol.wait."""
    from cuda.bindings.driver import CUlaunchAttribute, CUlaunchAttributeID

    attribute = CUlaunchAttribute()
    attribute.id = CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def bits_of(number: Any) -> int:
    """A number's bytes as the 8 that a parameter has: an int of 64 bits, a double for a float, a NumPy scalar as it is."""
    if isinstance(number, np.generic):
        return int.from_bytes(number.tobytes(), "little")
    if isinstance(number, int) and -(2**63) <= number < 2**63:
        return number
    if isinstance(number, float):
        return int(struct.unpack("<q", struct.pack("<d", number))[0])
    raise TypeError(f"an argument is {number!r}: expected a tensor, an int of 64 bits, a float or a NumPy scalar")
