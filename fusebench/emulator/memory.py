"""The memory that a launch sees. Global memory is that of its tensors, at their own addresses; shared memory begins as NaN.

An access outside of a tensor or of a block's shared memory, or at no multiple of its size, is a fault, as on the device, or more
strictly: what lies between two tensors is nobody's.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

Array = Any
SHARED_WINDOW = 1 << 56  # generic addresses of shared memory begin there
RANK_SHIFT = 24  # of an address in a cluster: the block's rank + 1 stands above
POISON = 0xFF  # all bits set: NaN as a float, -1 as an integer


class Region:
    """Bytes that lie together, seen in every width. `fresh`: a launch that may not have ended writes them."""

    fresh = False

    def __init__(self, base: int, memory: Array, name: str):
        self.base, self.memory, self.name, self.end = base, memory, name, base + memory.size
        self._views: dict[Any, Array] = {}

    def view(self, dtype: Any) -> Array:
        """The bytes as `dtype`, without a rest at the end."""
        if dtype not in self._views:
            self._views[dtype] = self.memory[: self.memory.size // dtype.itemsize * dtype.itemsize].view(dtype)
        return self._views[dtype]


def of_pointer(pointer: int, size: int, name: str) -> Region:
    """The region of memory that somebody else holds."""
    held: Any = (ctypes.c_uint8 * size).from_address(pointer) if size else b""
    return Region(pointer, np.frombuffer(held, np.uint8), name)


class Memory:
    """All spaces. `machine` has the threads; `regions` are global, `size` are the bytes of shared memory of a block, `local` those of a thread's own."""

    def __init__(self, machine: Any, regions: list[Region], size: int, local: int):
        self.m = machine
        self.regions = sorted(regions, key=lambda r: r.base)
        self.bases = np.array([r.base for r in self.regions], np.int64)
        self.size = -(-size // 1024) * 1024
        self.limit = size
        self.shared = Region(0, np.full(machine.blocks * self.size + 16, POISON, np.uint8), "shared memory")
        self.local_size = local
        self.local = Region(0, np.full(machine.threads * local + 16, POISON, np.uint8), "local memory")

    def load(self, at: Any, space: str, address: Array, dtype: Any, count: int) -> list[Array]:
        """`count` arrays of elements, one a thread."""
        parts = self._places(at, space, address, dtype, count)
        if len(parts) == 1:
            (region, index, _) = parts[0]
            view = region.view(dtype)
            return [view[index + n] for n in range(count)]
        found = [np.empty(address.shape, dtype) for _ in range(count)]
        for region, index, own in parts:
            for n in range(count):
                found[n][own] = region.view(dtype)[index + n]
        return found

    def store(self, at: Any, space: str, address: Array, dtype: Any, values: tuple[Array, ...]) -> None:
        """Of threads that write to one place the last one counts."""
        for region, index, own in self._places(at, space, address, dtype, len(values)):
            for n, value in enumerate(values):
                value = np.broadcast_to(np.asarray(value).astype(dtype, copy=False), address.shape)
                region.view(dtype)[index + n] = value if own is None else value[own]

    def update(
        self, at: Any, space: str, address: Array, dtype: Any, operation: str, values: tuple[Array, ...], count: int
    ) -> Array:
        """An atomic operation, thread by thread; returns what was there."""
        before: Array = np.empty(address.shape, dtype)
        operands = [np.broadcast_to(np.asarray(v).astype(dtype, copy=False), address.shape) for v in values]
        for region, index, some in self._places(at, space, address, dtype, count):
            view = region.view(dtype)
            threads: Array = np.arange(address.size) if some is None else np.flatnonzero(some)
            for place, t in zip(index.tolist(), threads.tolist(), strict=True):
                before[t] = view[place]
                for n in range(count):
                    own = operands[n : n + 1] if count > 1 else operands
                    view[place + n] = _updated(operation, view[place + n], *(o[t] for o in own))
        return before

    def copy(self, to: tuple[Region, int], of: tuple[Region, int], size: int) -> None:
        """Bytes from one place to another."""
        (a, i), (b, j) = to, of
        a.memory[i : i + size] = b.memory[j : j + size]

    def place(self, space: str, address: int, size: int, block: int = 0) -> tuple[Region, int]:
        """The region and the offset of `size` bytes, of the copy engine for a block."""
        if space == "global":
            region = self._region(address, size)
            return region, address - region.base
        if not 0 <= address <= self.limit - size:
            self.m.fail(f"{size} bytes at {address:#x} of {self.limit} bytes of shared memory")
        return self.shared, block * self.size + address

    def any_fresh(self, address: Array) -> bool:
        """Whether any of these global addresses is of what a launch that may not have ended writes."""
        places = np.unique(np.searchsorted(self.bases, address, "right")) - 1
        return any(self.regions[p].fresh for p in places.tolist() if p >= 0)

    def blocks_of(self, at: Any, address: Array) -> tuple[Array, Array]:
        """The block whose shared memory an address of a cluster is in, and the address there."""
        own, rank = self.m.block[at], address >> RANK_SHIFT
        return np.where(rank > 0, own - own % self.m.cluster + rank - 1, own), address & ((1 << RANK_SHIFT) - 1)

    def _region(self, address: int, size: int) -> Region:
        number = int(np.searchsorted(self.bases, address, "right")) - 1
        if number < 0:
            self.m.fail(f"an access of {size} bytes to global memory before all tensors")
        region = self.regions[number]
        if address + size > region.end:
            beyond = f"{address - region.end} bytes behind the end of {region.name}"
            self.m.fail(f"an access of {size} bytes to global memory {beyond}")
        return region

    def _places(self, at: Any, space: str, address: Array, dtype: Any, count: int) -> list[tuple[Region, Array, Any]]:
        """For each region: it, the places of elements, and which threads (None: all)."""
        size = dtype.itemsize * count
        if address.size == 0:
            return []
        if np.any(address % size):
            self.m.fail(f"an access of {size} bytes at an address that is no multiple of it, in {space} memory")
        if space == "generic":
            shared = address >= SHARED_WINDOW
            if not shared.any():
                space = "global"
            elif shared.all():
                space, address = "shared", address - SHARED_WINDOW
            else:
                self.m.fail("generic addresses of several spaces in one instruction")
        if space in ("global", "const"):
            number = np.searchsorted(self.bases, address, "right") - 1
            first = self._region(int(address[0]), size)
            if address.min() >= first.base and address.max() + size <= first.end:
                return [(first, (address - first.base) // dtype.itemsize, None)]
            parts = []
            for n in np.unique(number):
                own = number == n
                region = self._region(int(address[own].max()), size)
                self._region(int(address[own].min()), size)
                parts.append((region, (address[own] - region.base) // dtype.itemsize, own))
            return parts
        if space == "local":
            return [(self.local, (self.m.ids(at) * self.local_size + address) // dtype.itemsize, None)]
        block, address = self.blocks_of(at, address) if space == "shared::cluster" else (self.m.block[at], address)
        if address.min() < 0 or address.max() + size > self.limit:
            worst = int(address.max()) if address.max() + size > self.limit else int(address.min())
            self.m.fail(f"an access of {size} bytes at {worst:#x} of {self.limit} bytes of shared memory")
        if space == "shared::cluster" and np.any(self.m.left[block] == self.m.block_threads):
            self.m.fail("an access to the shared memory of a block that has ended")
        return [(self.shared, (block * self.size + address) // dtype.itemsize, None)]


def _updated(operation: str, old: Any, value: Any, other: Any = None) -> Any:
    if operation == "add":
        return old + value
    if operation in ("min", "max"):
        return min(old, value) if operation == "min" else max(old, value)
    if operation == "exch":
        return value
    if operation == "cas":
        return other if old == value else old
    if operation == "inc":
        return type(old)(0) if old >= value else old + type(old)(1)
    return {"or": old | value, "and": old & value, "xor": old ^ value}[operation]
