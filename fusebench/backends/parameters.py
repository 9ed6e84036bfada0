"""What the driver takes of a launch, made once and rewritten: the configuration, the memory of the parameters, and tensor maps.

Needs neither a GPU nor a driver until a tensor map is made.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

ALIGNMENT = 64  # of a tensor map
MAP_BYTES = 128
SWIZZLES = {128: "128B", 64: "64B", 32: "32B"}  # by the bytes of a box's rows


class Parameters:
    """The memory of one launch at a time: 8 bytes for each argument, the address of each, and the configuration.

    `address` is what `cuLaunchKernelEx` takes for its parameters; a null pointer ends them. An argument of more than 8 bytes lies
    elsewhere, and its entry of `addresses` says where.
    """

    __slots__ = ("address", "addresses", "config", "function", "numbers", "stream", "values")

    def __init__(self, function: Any, numbers: Sequence[Any], grid: Any, block: int, shared_memory: int):
        """`numbers` are the arguments, with 0 for those whose values or addresses are written before each launch."""
        from cuda.bindings.driver import CUlaunchConfig, CUstream

        self.function, self.numbers = function, list(numbers)
        self.values = (ctypes.c_int64 * len(numbers))(*map(bits_of, numbers))
        self.point_to(range(len(numbers)))
        self.config, self.stream = CUlaunchConfig(), 0
        sizes = (*grid, 1, 1)[:3] if isinstance(grid, tuple) else (grid, 1, 1)
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = sizes
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = block, 1, 1
        self.config.sharedMemBytes, self.config.numAttrs = shared_memory, 0
        self.config.hStream = CUstream(0)

    def point_to(self, places: Sequence[int]) -> None:
        """The kernel's parameters are the arguments at these places."""
        start = ctypes.addressof(self.values)
        self.addresses = (ctypes.c_void_p * (len(places) + 1))(*[start + 8 * place for place in places], None)
        self.address = ctypes.addressof(self.addresses)

    def write(self, place: int, number: Any) -> bool:
        """Another number than the last launch's. Whether the kernel takes it."""
        self.values[place], self.numbers[place] = bits_of(number), number
        return True

    def queue_on(self, stream: int) -> None:
        """Another stream than the last launch's, by its pointer."""
        from cuda.bindings.driver import CUstream

        self.config.hStream, self.stream = CUstream(stream), stream


def bits_of(number: Any) -> int:
    """A number's bytes as the 8 that a parameter has: an int of 64 bits, a double for a float, a NumPy scalar as it is."""
    if isinstance(number, np.generic):
        return int.from_bytes(number.tobytes(), "little")
    if isinstance(number, int) and -(2**63) <= number < 2**63:
        return number
    if isinstance(number, float):
        return int(struct.unpack("<q", struct.pack("<d", number))[0])
    raise TypeError(f"an argument is {number!r}: expected a tensor, an int of 64 bits, a float or a NumPy scalar")


@cache
def libcuda() -> Any:
    """The driver itself. cuda-core makes tensor maps, but does not say where they lie."""
    return ctypes.CDLL("libcuda.so.1")


@lru_cache(maxsize=1024)
def tensor_map(pointer: int, shape: tuple[int, ...], dtype: Any, box: tuple[int, ...], tf32: bool, index: int) -> Any:
    """A contiguous tensor as Hopper's copy engine sees it, in boxes of those sizes, with elements of its own dtype, or of float32
    rounded to `tf32` on the way: (address of the map, its memory). Rows of a box of 128, 64 or 32 bytes are swizzled. Leading
    dimensions that the box has none for are taken as one. Nothing waits for the device. Raises ValueError for a dtype that the
    copy engine does not know, and where the driver refuses.

    A map says where memory lies and how, whatever is there, so that one that was made before serves; it keeps nobody's memory.
    """
    from cuda.bindings import driver

    kinds = {
        "torch.float16": "FLOAT16",
        "torch.bfloat16": "BFLOAT16",
        "torch.float32": "TFLOAT32" if tf32 else "FLOAT32",
    }
    kind = kinds.get(str(dtype), "UINT8" if dtype.itemsize == 1 else "")
    if not kind:
        raise ValueError(f"a tensor of {dtype} cannot be a tensor map: expected 8 bits, float16, bfloat16 or float32")
    rank, leading = len(box), len(shape) - len(box) + 1
    sizes = [math.prod(shape[:leading]), *shape[leading:]]
    strides = [dtype.itemsize * math.prod(sizes[i + 1 :]) for i in range(rank)]
    memory = (ctypes.c_uint8 * (MAP_BYTES + ALIGNMENT))()
    address = -(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT
    swizzle = f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES.get(box[-1] * dtype.itemsize, 'NONE')}"
    error = libcuda().cuTensorMapEncodeTiled(  # the driver counts dimensions from the innermost one
        ctypes.c_void_p(address), int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}")), ctypes.c_uint32(rank),
        ctypes.c_void_p(pointer), (ctypes.c_uint64 * rank)(*sizes[::-1]), (ctypes.c_uint64 * rank)(*strides[-2::-1]),
        (ctypes.c_uint32 * rank)(*box[::-1]), (ctypes.c_uint32 * rank)(*[1] * rank),
        0, int(getattr(driver.CUtensorMapSwizzle, swizzle)), 0, 0,
    )  # fmt: skip
    if error:
        raise ValueError(f"the driver makes no tensor map of {tuple(shape)} {dtype} in boxes of {box} (error {error})")
    return address, memory
