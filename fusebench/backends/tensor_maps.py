"""Tensor maps: how Hopper's copy engine sees a tensor. The driver makes them, and a call writes where its tensor lies.

Needs neither a GPU nor a driver until a map is made.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

ALIGNMENT = 64  # of a map, in bytes
WORDS = 16  # of 8 bytes, that a map has
MOVED = 0xFFFF_FFFF_FFF0  # all bits of an address of such a tensor, by which two maps are told apart
SWIZZLES = {128: "128B", 64: "64B", 32: "32B"}  # by the bytes of a box's rows
KINDS = {"torch.float16": "FLOAT16", "torch.bfloat16": "BFLOAT16", "torch.float32": "FLOAT32"}


class TensorMap:
    """The map of contiguous tensors of one dtype, in boxes of those sizes, with elements of their own dtype, or of float32 rounded to
    `tf32` on the way. Rows of a box of 128, 64 or 32 bytes are swizzled. Leading dimensions that the box has none for are taken as one.

    It lies at `address`, and is of tensors of the `shape` that was described last: `tensor[0]` is where such a tensor lies, so that a call
    writes that alone. One call at a time may use it. Raises ValueError for a dtype that the copy engine does not know.
    """

    __slots__ = ("_box", "_dtype", "_kind", "_memory", "_swizzle", "_words", "address", "shape", "tensor")

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
        self.shape: Any = None
        self._memory, self._words = _room()
        self.address, self.tensor = ctypes.addressof(self._words), self._words

    def describe(self, pointer: int, shape: Any) -> None:
        """Makes it the map of a tensor of that shape which lies there. Nothing waits for the device. Where the driver puts more than the
        address into the first word, or puts it elsewhere, `shape` stays None, so that each call describes its tensor anew, which takes it some
        20 µs, and `tensor` is of no map. Raises ValueError where the driver refuses."""
        layout = self._laid_out(shape)
        _memory, other = _room()
        moved = pointer ^ MOVED
        refused = self._encode(other, moved, layout)
        if error := self._encode(self._words, pointer, layout):
            said = f"the driver makes no tensor map of {tuple(shape)} {self._dtype} in boxes of {self._box} (error {error})"
            raise ValueError(said)
        alone = not refused and other[0] == moved and [*self._words] == [pointer, *other[1:]]
        self.shape, self.tensor = (shape, self._words) if alone else (None, [0])

    def _encode(self, words: Any, pointer: int, layout: tuple[Any, ...]) -> int:
        rank = ctypes.c_uint32(len(self._box))
        place, tensor = ctypes.c_void_p(ctypes.addressof(words)), ctypes.c_void_p(pointer)
        encode = libcuda().cuTensorMapEncodeTiled
        return int(encode(place, self._kind, rank, tensor, *layout, 0, self._swizzle, 0, 0))

    def _laid_out(self, shape: Sequence[int]) -> tuple[Any, ...]:
        """Sizes, strides in bytes but the innermost, the box and its steps; the driver counts dimensions from the innermost one."""
        rank, leading = len(self._box), len(shape) - len(self._box) + 1
        sizes = [math.prod(shape[:leading]), *shape[leading:]]
        strides = [self._dtype.itemsize * math.prod(sizes[i + 1 :]) for i in range(rank)]
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        return wide(*sizes[::-1]), wide(*strides[-2::-1]), narrow(*self._box[::-1]), narrow(*[1] * rank)


def _room() -> tuple[Any, Any]:
    """Memory, and the words of a map in it."""
    memory = (ctypes.c_uint8 * (8 * WORDS + ALIGNMENT))()
    address = -(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT
    return memory, (ctypes.c_uint64 * WORDS).from_address(address)


@cache
def libcuda() -> Any:
    """The driver itself. cuda-core makes tensor maps, but does not say where they lie."""
    return ctypes.CDLL("libcuda.so.1")
