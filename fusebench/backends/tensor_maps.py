"""Tensor maps: how Hopper's copy engine sees a tensor. They are made by the driver, and kept for the next calls.

Needs neither a GPU nor a driver until a map is made.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

ALIGNMENT = 64  # of a map
MAP_BYTES = 128
KEPT = 64  # maps of one argument: more than there are addresses that recur
SWIZZLES = {128: "128B", 64: "64B", 32: "32B"}  # by the bytes of a box's rows
KINDS = {"torch.float16": "FLOAT16", "torch.bfloat16": "BFLOAT16", "torch.float32": "FLOAT32"}


class TensorMaps:
    """The maps of contiguous tensors of one dtype, in boxes of those sizes, with elements of their own dtype, or of float32 rounded to
    `tf32` on the way. Rows of a box of 128, 64 or 32 bytes are swizzled. Leading dimensions that the box has none for are taken as one.

    `known[pointer]` is (the tensor's shape, address of its map, the map's memory). A map says where memory lies and how, whatever is
    there: it keeps nobody's memory, and serves for what lies there later in the same shape. One call at a time may use these maps.
    Raises ValueError for a dtype that the copy engine does not know.
    """

    __slots__ = ("_box", "_dtype", "_kind", "_layout", "_shape", "_swizzle", "known")

    def __init__(self, dtype: Any, box: tuple[int, ...], tf32: bool):
        from cuda.bindings.driver import CUtensorMapDataType, CUtensorMapSwizzle

        kind = KINDS.get(str(dtype), "UINT8" if dtype.itemsize == 1 else "")
        if not kind:
            raise ValueError(
                f"a tensor of {dtype} cannot be a tensor map: expected 8 bits, float16, bfloat16 or float32"
            )
        swizzle = f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES.get(box[-1] * dtype.itemsize, 'NONE')}"
        self._dtype, self._box, self._swizzle = dtype, box, int(getattr(CUtensorMapSwizzle, swizzle))
        self._kind = int(getattr(CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{'T' * tf32}{kind}"))
        self._shape: Any = None  # of the last map that was made
        self._layout: tuple[Any, ...] = ()
        self.known: dict[int, tuple[Any, int, Any]] = {}

    def make(self, pointer: int, shape: Any) -> tuple[Any, int, Any]:
        """The map of a tensor that is not among the `known` ones, which it joins. Nothing waits for the device. Raises ValueError where
        the driver refuses."""
        if shape != self._shape:
            self._layout, self._shape = self._laid_out(shape), shape
        memory = (ctypes.c_uint8 * (MAP_BYTES + ALIGNMENT))()
        address = -(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT
        rank = ctypes.c_uint32(len(self._box))
        error = libcuda().cuTensorMapEncodeTiled(
            ctypes.c_void_p(address), self._kind, rank, ctypes.c_void_p(pointer), *self._layout, 0, self._swizzle, 0, 0
        )
        if error:
            said = f"the driver makes no tensor map of {tuple(shape)} {self._dtype} in boxes of {self._box} (error {error})"
            raise ValueError(said)
        if len(self.known) == KEPT:
            self.known.clear()
        self.known[pointer] = made = (shape, address, memory)
        return made

    def _laid_out(self, shape: Sequence[int]) -> tuple[Any, ...]:
        """Sizes, strides in bytes but the innermost, the box and its steps; the driver counts dimensions from the innermost one."""
        rank, leading = len(self._box), len(shape) - len(self._box) + 1
        sizes = [math.prod(shape[:leading]), *shape[leading:]]
        strides = [self._dtype.itemsize * math.prod(sizes[i + 1 :]) for i in range(rank)]
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        return wide(*sizes[::-1]), wide(*strides[-2::-1]), narrow(*self._box[::-1]), narrow(*[1] * rank)


@cache
def libcuda() -> Any:
    """The driver itself. cuda-core makes tensor maps, but does not say where they lie."""
    return ctypes.CDLL("libcuda.so.1")
