"""The barriers of blocks (bar.sync) and of clusters, and the mbarriers in shared memory, which count arrivals and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


class Barriers:
    """Of blocks and clusters. Threads that have ended are not waited for at a barrier of all."""

    def __init__(self, machine: Any):
        self.m = machine
        self.arrived: dict[int, Array] = {}  # by barrier: threads of each block
        self.wanted: dict[int, Array] = {}  # -1: all
        self.votes: dict[int, Array] = {}
        self.waiting: dict[int, list[tuple[int, Array, Any]]] = {}  # basic block, threads, what takes the votes
        clusters = machine.blocks // machine.cluster
        self.of_cluster, self.phase = np.zeros(clusters, np.int64), np.zeros(clusters, np.int64)
        self.phase_of = np.zeros(machine.threads, np.int64)  # in which a thread arrived
        self.in_cluster: list[tuple[int, Array]] = []

    def arrive(self, at: Any, barrier: Any, count: Any, following: int) -> Any:
        """bar.arrive"""
        number = int(np.max(barrier))
        self._count(number, self.m.ids(at), count)
        self.release(number)
        return ((following, at),)

    def sync(self, at: Any, barrier: Any, count: Any, following: int, reduction: Any = None) -> Any:
        """bar.sync, and bar.red with a `reduction`: (or, and, popc; the register that takes it; the votes)."""
        ids = self.m.ids(at)
        numbers = np.broadcast_to(barrier, ids.shape)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            self._count(number, ids[mine], count)
            to = None
            if reduction is not None:
                how, register, votes = reduction
                own = np.broadcast_to(votes, ids.shape)[mine]
                found = np.bincount(self.m.block[ids[mine]], own, minlength=self.m.blocks)
                self.votes[number] = self.votes.get(number, 0) + found
                to = how, register
            self.waiting.setdefault(number, []).append((following, ids[mine], to))
            self.release(number)
        return ()

    def _count(self, barrier: int, ids: Array, count: Any) -> None:
        if barrier not in self.arrived:
            self.arrived[barrier], self.wanted[barrier] = np.zeros((2, self.m.blocks), np.int64)
        self.arrived[barrier] += np.bincount(self.m.block[ids], minlength=self.m.blocks)
        self.wanted[barrier][self.m.block[ids]] = -1 if count is None else int(np.max(count))

    def release(self, barrier: int) -> None:
        """Lets those go on whose block is complete."""
        arrived, wanted = self.arrived[barrier], self.wanted[barrier]
        needed = np.where(wanted < 0, self.m.block_threads - self.m.left, wanted)
        if np.any((wanted >= 0) & (arrived > wanted)):
            self.m.fail(f"more threads arrive at barrier {barrier} than it awaits")
        full = (arrived >= needed) & (arrived > 0)
        if not full.any():
            return
        self.m.copies.perhaps()
        kept = []
        for number, ids, to in self.waiting.get(barrier, ()):
            free = full[self.m.block[ids]]
            if to is not None:
                votes, all_ = self.votes[barrier][self.m.block[ids[free]]], arrived[self.m.block[ids[free]]]
                to[1][ids[free]] = {"or": votes > 0, "and": votes == all_, "popc": votes}[to[0]]
            if free.any():
                self.m.push(number, ids[free])
            if not free.all():
                kept.append((number, ids[~free], to))
        self.waiting[barrier] = kept
        arrived[full] = 0
        if barrier in self.votes:
            self.votes[barrier][full] = 0

    def cluster_arrive(self, at: Any, following: int) -> Any:
        """barrier.cluster.arrive"""
        ids = self.m.ids(at)
        own = self.m.block[ids] // self.m.cluster
        self.phase_of[ids] = self.phase[own]
        self.of_cluster += np.bincount(own, minlength=self.of_cluster.size)
        full = self.of_cluster == self.m.cluster * self.m.block_threads
        if full.any():
            self.of_cluster[full] = 0
            self.phase[full] += 1
            waiting, self.in_cluster = self.in_cluster, []
            for number, threads in waiting:
                for _, over in self.cluster_wait(threads, number):
                    self.m.push(number, over)
        return ((following, at),)

    def cluster_wait(self, at: Any, following: int) -> Any:
        """barrier.cluster.wait"""
        ids = self.m.ids(at)
        over = self.phase[self.m.block[ids] // self.m.cluster] > self.phase_of[ids]
        if not over.all():
            self.in_cluster.append((following, ids[~over]))
        return ((following, ids[over]),) if over.any() else ()

    def waits(self) -> list[str]:
        """Where threads wait."""
        said = [f"{ids.size} at barrier {b}" for b, parts in self.waiting.items() for _, ids, _ in parts]
        return said + [f"{ids.size} for their cluster" for _, ids in self.in_cluster]


class Mbarriers:
    """Those of all blocks, by block and address: how many arrivals and bytes the present phase still awaits."""

    def __init__(self, machine: Any):
        self.m = machine
        self.state: dict[tuple[int, int], list[int]] = {}  # expected, awaited, bytes, phase
        self.parked: dict[tuple[int, int], list[tuple[int, Array]]] = {}

    def init(self, at: Any, address: Array, count: Array) -> None:
        """mbarrier.init"""
        for block, place, number in zip(self.m.block[at], address, np.broadcast_to(count, address.shape), strict=True):
            self.state[int(block), int(place)] = [int(number), int(number), 0, 0]

    def arrive(self, at: Any, address: Array, arrivals: Any, expects: Any) -> None:
        """`arrivals` of each thread, after it said how many bytes it `expects`."""
        block, place = self.m.memory.blocks_of(at, address)
        self.count(block, place, arrivals, expects)

    def count(self, block: Array, place: Array, arrivals: Any, size: Any) -> None:
        """Arrivals, and bytes that are awaited from now on, or, negative, came. Where none are left the phase ends, and who waits goes
        on."""
        keys, where = np.unique(block.astype(np.int64) << 32 | place, return_inverse=True)
        came = np.bincount(where, np.broadcast_to(np.asarray(arrivals, float), block.shape), keys.size)
        more = np.bincount(where, np.broadcast_to(np.asarray(size, float), block.shape), keys.size)
        for key, n, tx in zip(keys.tolist(), came.tolist(), more.tolist(), strict=True):
            own = key >> 32, key & 0xFFFFFFFF
            state = self._of(own, "an arrival")
            state[1] -= int(n)
            state[2] += int(tx)
            if state[1] < 0:
                self.m.fail(f"more arrivals at the mbarrier {own[1]:#x} of block {own[0]} than it awaits")
            if state[1] == 0 and state[2] == 0:
                state[1], state[3] = state[0], state[3] ^ 1
                for number, threads in self.parked.pop(own, ()):
                    self.m.push(number, threads)

    def wait(self, number: int, at: Any, address: Array, parity: Array, done: Array, following: int) -> Any:
        """mbarrier.try_wait.parity, `done` where the phase of that parity has ended; the other threads come back to the basic block
        `number` when it has."""
        ids = self.m.ids(at)
        keys = self.m.block[ids].astype(np.int64) << 32 | address
        parity = np.broadcast_to(parity, ids.shape) & 1
        over = np.zeros(ids.size, bool)
        for key in np.unique(keys).tolist():
            own, same = (key >> 32, key & 0xFFFFFFFF), keys == key
            ended = same & (parity != self._of(own, "a wait")[3])
            over |= ended
            if (waiting := same & ~ended).any():
                self.parked.setdefault(own, []).append((number, ids[waiting]))
        done[ids[over]] = True
        return ((following, ids[over]),) if over.any() else ()

    def _of(self, own: tuple[int, int], what: str) -> list[int]:
        if own not in self.state:
            self.m.fail(f"{what} at {own[1]:#x} of block {own[0]}, where no mbarrier was begun")
        return self.state[own]

    def waits(self) -> list[str]:
        """Where threads wait."""
        return [
            f"{ids.size} at the mbarrier {key:#x} of block {block}"
            for (block, key), parts in self.parked.items()
            for _, ids in parts
        ]
