"""What happens beside the threads: asynchronous copies.

A copy may happen at any time between its instruction and the wait for it. So it happens at once, as late as it may, or at some barrier
between: a kernel that reads too early, writes again what is still being read, or uses memory that a copy is still to write, is wrong in
one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Array = Any
WHEN = AT_ONCE, AT_BARRIERS, LATE = "at once", "at barriers", "late"
SHARE = 0.3  # of the barriers at which all that is under way happens
EARLY = "a copy of what a launch before this one, which may not have ended, writes: it comes before griddepcontrol.wait"


@dataclass
class Batch:
    """What threads asked for and has not happened: `group` is the number of each thread's group; `happen(which)` does it for some."""

    threads: Array
    group: Array
    happen: Callable[[Array], None]


class Copies:
    """Of all threads; `when` is one of WHEN."""

    def __init__(self, machine: Any, when: str):
        self.m, self.when = machine, when
        self.batches: dict[str, list[Batch]] = {"cp": [], "bulk": [], "wgmma": []}
        self.groups = {kind: np.zeros(machine.threads, np.int64) for kind in self.batches}
        self.engine: list[Callable[[], None]] = []  # copies that a barrier counts

    # ---- groups that threads commit and wait for

    def ask(self, kind: str, at: Any, happen: Callable[[Array], None]) -> None:
        """`happen(which)` is done for the threads `at`, of which `which` says some, before their wait ends."""
        threads = self.m.ids(at)
        if self.when != AT_ONCE:
            self.batches[kind].append(Batch(threads, self.groups[kind][threads], happen))
        else:
            happen(np.ones(threads.size, bool))

    def commit(self, at: Any, kind: str) -> None:
        self.groups[kind][at] += 1

    def wait(self, at: Any, kind: str, pending: int) -> None:
        """Until at most so many of each thread's groups have not happened."""
        if not self.batches[kind]:
            return
        until = np.full(self.m.threads, -1, np.int64)
        until[at] = self.groups[kind][at] - pending
        left = []
        for batch in self.batches[kind]:
            now = batch.group < until[batch.threads]
            if now.any():
                batch.happen(now)
                if now.all():
                    continue
                batch = _rest(batch, now)
            left.append(batch)
        self.batches[kind] = left

    def finish(self) -> None:
        """All that has not happened."""
        asked = [batch for batches in self.batches.values() for batch in batches]
        self.batches = {kind: [] for kind in self.batches}
        for batch in asked:
            batch.happen(np.ones(batch.threads.size, bool))
        while self.engine:
            self.engine.pop()()

    def perhaps(self) -> None:
        """At a barrier: the device may have come to it by now."""
        if self.when == AT_BARRIERS and self.m.random.random() < SHARE:
            self.finish()

    def go_on(self) -> bool:
        """Whether there was a copy left that a barrier counts; one of them happens now."""
        if not self.engine:
            return False
        self.engine.pop(int(self.m.random.integers(len(self.engine))))()
        return True

    # ---- copies

    def copy(self, at: Any, to: Array, of: Array, size: int, given: Array | None) -> None:
        """cp.async: `size` bytes a thread, of which `given` are read and the others 0."""
        block = self.m.block[at]
        given = np.broadcast_to(np.uint32(size) if given is None else given, to.shape).astype(np.int64)
        if np.any(to % size) or np.any((given > 0) & (of % size != 0)):
            self.m.fail(f"cp.async of {size} bytes at an address that is no multiple of it")
        early = (given > 0) & ~self.m.waited[self.m.ids(at)]
        if early.any() and self.m.memory.any_fresh(of[early]):
            self.m.fail(EARLY)
        whole = np.dtype("u4")
        words = size // 4

        def happen(which: Array) -> None:
            for n in range(words):
                value = np.zeros(which.sum(), "u4")
                part = np.clip(given[which] - 4 * n, 0, 4)
                if (read := part == 4).any():
                    value[read] = self.m.memory.load(None, "global", of[which][read] + 4 * n, whole, 1)[0]
                for byte in range(3):  # of a word that is read in part: what follows may be nobody's memory
                    if (read := (byte < part) & (part < 4)).any():
                        (found,) = self.m.memory.load(None, "global", of[which][read] + 4 * n + byte, np.dtype("u1"), 1)
                        value[read] |= found.astype("u4") << np.uint32(8 * byte)
                region, _ = self.m.memory.place("shared", int(to.max()), size)
                region.view(whole)[(block[which] * self.m.memory.size + to[which]) // 4 + n] = value

        self.ask("cp", at, happen)

    def send(self, at: Any, to: Array, dtype: Any, values: tuple[Array, ...], barrier: Array) -> None:
        """st.async: a store to a block of the cluster, counted by a barrier there."""
        size = dtype.itemsize * len(values)
        block, place = self.m.memory.blocks_of(at, to)
        there, key = self.m.memory.blocks_of(at, barrier)
        if np.any(block != there):
            self.m.fail("st.async to one block, counted by the barrier of another")
        values = tuple(np.broadcast_to(v, to.shape).copy() for v in values)

        def happen() -> None:
            for n, value in enumerate(values):
                self.m.memory.shared.view(dtype)[(block * self.m.memory.size + place) // dtype.itemsize + n] = value
            self._check_alive(block)
            self.m.mbarriers.count(there, key, 0, -size)

        self._by_engine(happen)

    def box(
        self, at: Any, to: Array, map_: Array, places: tuple[Array, ...], barrier: Array, ranks: Array | None
    ) -> None:
        """A box of a tensor map, to the same place in each block whose bit is set in `ranks`."""
        threads = self.m.ids(at)
        for n, thread in enumerate(threads):
            own = int(self.m.block[thread])
            start = [int(np.broadcast_to(p, threads.shape)[n]) for p in places]
            first = own - own % self.m.cluster
            if ranks is None:
                (block,), (place,) = (v.tolist() for v in self.m.memory.blocks_of(thread[None], to[n][None]))
                blocks, (key,) = [block], self.m.memory.blocks_of(thread[None], barrier[n][None])[1].tolist()
            else:
                mask = int(np.broadcast_to(ranks, threads.shape)[n])
                blocks = [first + r for r in range(self.m.cluster) if mask >> r & 1]
                place, key = int(to[n]) & 0xFFFFFF, int(barrier[n]) & 0xFFFFFF
            tensor = self.m.map_at(int(map_[n]))
            if tensor.fresh and not self.m.waited[thread]:
                self.m.fail(EARLY)
            self._by_engine(partial(self._bring_box, blocks, place, key, tensor, start))

    def bulk_load(self, at: Any, to: Array, of: Array, size: Array, barrier: Array) -> None:
        """Bytes of global memory to shared memory."""
        block, place = self.m.memory.blocks_of(at, to)
        _, key = self.m.memory.blocks_of(at, barrier)
        sizes = np.broadcast_to(size, to.shape)
        for b, p, o, s, k in zip(block, place, of, sizes, key, strict=True):
            self._aligned(int(p), int(o), int(s))

            def happen(b: int = int(b), p: int = int(p), o: int = int(o), s: int = int(s), k: int = int(k)) -> None:
                region, offset = self.m.memory.place("global", o, s)
                self._bring([b], p, k, region.memory[offset : offset + s])

            self._by_engine(happen)

    def bulk_store(self, at: Any, to: Array, of: Array, size: Array) -> None:
        """Bytes of shared memory to global memory, of a group that is committed and waited for."""
        block, sizes = self.m.block[at], np.broadcast_to(size, to.shape)
        for p, o, s in zip(to, of, sizes, strict=True):
            self._aligned(int(o), int(p), int(s))

        def happen(which: Array) -> None:
            for n in np.flatnonzero(which):
                shared = self.m.memory.place("shared", int(of[n]), int(sizes[n]), int(block[n]))
                self.m.memory.copy(self.m.memory.place("global", int(to[n]), int(sizes[n])), shared, int(sizes[n]))

        self.ask("bulk", at, happen)

    def _bring_box(self, blocks: list[int], place: int, key: int, tensor: Any, start: list[int]) -> None:
        self._bring(blocks, place, key, tensor.box_at(start), tensor.chunks)

    def _bring(self, blocks: list[int], place: int, key: int, bytes_: Array, chunks: int = 1) -> None:
        """Bytes to a place in each of the blocks, whose `chunks` of a row, of 16 bytes, change places."""
        where = place + np.arange(bytes_.size)
        where ^= ((where >> 7) & (chunks - 1)) << 4
        for block in blocks:
            region, offset = self.m.memory.place("shared", place, bytes_.size, block)
            region.memory[offset - place + where] = bytes_
            self._check_alive(np.array([block]))
            self.m.mbarriers.count(np.array([block]), np.array([key]), 0, -bytes_.size)

    def _by_engine(self, happen: Callable[[], None]) -> None:
        if self.when != AT_ONCE:
            self.engine.append(happen)
        else:
            happen()

    def _check_alive(self, blocks: Array) -> None:
        if np.any(self.m.left[blocks] == self.m.block_threads):
            self.m.fail("a copy to the shared memory of a block that has ended")

    def _aligned(self, shared: int, far: int, size: int) -> None:
        if shared % 16 or far % 16 or size % 16:
            self.m.fail(f"a bulk copy of {size} bytes, which must lie at multiples of 16")


def _rest(batch: Batch, done: Array) -> Batch:
    """What is left of a batch."""
    kept = np.flatnonzero(~done)

    def happen(which: Array) -> None:
        whole = np.zeros(batch.threads.size, bool)
        whole[kept[which]] = True
        batch.happen(whole)

    return Batch(batch.threads[kept], batch.group[kept], happen)
