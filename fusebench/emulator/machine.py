"""A launch on the CPU: many threads at once, in an order in which they might run on a device.

Threads that are at the same basic block run it together. The warps of a cluster are divided into some teams, and a team runs until
it has to wait for another one: so a barrier that is missing shows, as it would not if all went in step. A grid runs in waves of as many
blocks as a device of a few multiprocessors holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from fusebench.emulator import arithmetic
from fusebench.emulator.arithmetic import TYPES
from fusebench.emulator.barriers import Barriers, Mbarriers
from fusebench.emulator.copies import WHEN, Copies
from fusebench.emulator.device import MULTIPROCESSORS
from fusebench.emulator.memory import SHARED_WINDOW, Memory, Region
from fusebench.emulator.products import Products
from fusebench.emulator.ptx import Variable
from fusebench.emulator.translations import Translation
from fusebench.emulator.warps import Warps

Array = Any
TEAMS = 2, 3, 5, 8  # of which a launch has one many, if it has so many warps
TURN = 300  # basic blocks that a team runs before the next one's turn: who polls memory waits for the others
POLLING = 4  # basic blocks of a loop that waits for memory, at the most
MOST = 5_000_000  # basic blocks of a wave: beyond it somebody polls for ever
MAPS = 1 << 57  # addresses of tensor maps begin there


class Fault(RuntimeError):
    """What a device would not do: the message names the line of the source."""


class Program:
    """A kernel for so many threads: its registers, and the function of each basic block, made when threads come to it."""

    def __init__(self, kernel: Translation, threads: int):
        self.kernel, self.threads = kernel, threads
        self.registers: dict[str, Array] = {}  # as their bits
        self.functions: dict[int, FunctionType] = {}
        self.names: dict[str, Any] = {"A": arithmetic, "np": np, "T": TYPES}  # what functions see

    def function(self, number: int) -> Any:
        """That of a block. A call raises ValueError where an instruction in it is not known."""
        if number not in self.functions:
            code = self.kernel.codes[number]
            for name in code.co_names:
                if name in self.kernel.registers:
                    self.names[name] = self._register(*self.kernel.registers[name])
                elif name in self.kernel.constants:
                    self.names[name] = _constant(*self.kernel.constants[name])
            self.functions[number] = FunctionType(code, self.names)
        return self.functions[number]

    def _register(self, name: str, bits: int, kind: str) -> Array:
        """A register, seen as `kind`."""
        if name not in self.registers:
            self.registers[name] = np.zeros(self.threads, f"u{max(bits // 8, 1)}" if bits else bool)
        return self.registers[name] if kind == "pred" else self.registers[name].view(TYPES[kind])


class Machine:
    """Blocks `first` to `first + count` of a launch. `arguments` are numbers, addresses or tensor maps, `regions` the global memory.
    `random` chooses teams, and when copies happen."""

    def __init__(
        self, program: Program, grid: Sequence[int], first: int, block: int, shared: int, arguments: Sequence[Any], regions: Sequence[Region], random: Any
    ):  # fmt: skip
        self.kernel, self.registers, self.function = program.kernel, program.registers, program.function
        self.threads, self.cluster, self.random = program.threads, program.kernel.cluster, random
        self.block_threads, self.warps_of_block = block, -(-block // 32)
        self.blocks = self.threads // (32 * self.warps_of_block)
        self.place = 0, 0  # file and line of the source
        # lanes, clusters, the warps of a warpgroup, blocks of a cluster, warpgroups: threads of one place in all clusters are a slice
        self.together = 4 if self.warps_of_block % 4 == 0 else 1
        clusters = self.blocks // self.cluster
        self._all = t = np.arange(self.threads)
        group = t // (32 * clusters * self.together)
        self.lane = t % 32
        self.block = t // 32 % clusters * self.cluster + group % self.cluster
        self.warp = group // self.cluster * self.together + t // (32 * clusters) % self.together
        self._special(grid, first)
        self.left = np.zeros(self.blocks, np.int64)  # threads that have ended
        self.waited = np.zeros(self.threads, bool)  # which have waited for the launch before
        self.symbols: dict[str, int] = {}
        own, size = self._variables(shared)
        self.memory = Memory(self, [*regions, *own], size, self._local())
        self.warps, self.barriers, self.mbarriers = Warps(self), Barriers(self), Mbarriers(self)
        self.copies, self.products = Copies(self, str(random.choice(WHEN))), Products(self)
        self._pass(arguments)
        self.cuts = self._teams()
        self.waiting: list[dict[int, list[Array]]] = [{} for _ in range(len(self.cuts) + 1)]  # by team and basic block

    # ---- what is there at the beginning

    def _special(self, grid: Sequence[int], first: int) -> None:
        """The special registers, by their names."""
        x, y, z = grid
        number = first + self.block
        axes: dict[str, Any] = {
            "tid": (self.warp * 32 + self.lane, 0, 0),
            "ntid": (self.block_threads, 1, 1),
            "ctaid": (number % x, number // x % y, number // (x * y)),
            "nctaid": grid,
            "clusterid": (number // self.cluster, 0, 0),
            "nclusterid": (x * y * z // self.cluster, 1, 1),
            "cluster_ctaid": (self.block % self.cluster, 0, 0),
            "cluster_nctaid": (self.cluster, 1, 1),
        }
        values = {
            f"{name}_{axis}": value for name, three in axes.items() for axis, value in zip("xyz", three, strict=True)
        }
        values |= {
            "laneid": self.lane,
            "warpid": self.warp,
            "smid": self.block % MULTIPROCESSORS,
            "nsmid": MULTIPROCESSORS,
        }
        values |= {"cluster_ctarank": self.block % self.cluster, "cluster_nctarank": self.cluster}
        self.special = {name: np.broadcast_to(np.asarray(v, np.uint32), self.threads) for name, v in values.items()}

    def _variables(self, dynamic: int) -> tuple[list[Region], int]:
        """What the module keeps in global memory, and the bytes of shared memory, where the dynamic ones lie behind the others."""
        regions, end = [], 0
        for v in self.kernel.variables:
            if v.space == ".shared" and v.bytes:
                self.symbols[v.name] = begin = -(-end // v.alignment) * v.alignment
                end = begin + v.bytes
            elif v.space in (".global", ".const"):
                memory = _initial(v)
                regions.append(Region(memory.ctypes.data, memory, v.name))
                self.symbols[v.name] = memory.ctypes.data
        for v in self.kernel.variables:
            if v.space == ".shared" and not v.bytes:
                self.symbols[v.name] = end = -(-end // 1024) * 1024
        return regions, end + dynamic

    def _local(self) -> int:
        """The bytes of a thread's own memory."""
        end = 0
        for v in self.kernel.variables:
            if v.space == ".local":
                self.symbols[v.name] = begin = -(-end // 16) * 16
                end = begin + v.bytes
        return -(-end // 16) * 16

    def _pass(self, arguments: Sequence[Any]) -> None:
        """Gives the parameters their values. Raises Fault where these are others than the kernel has."""
        self.passed: dict[str, bytes] = {}
        self.maps: dict[int, Any] = {}
        if len(arguments) != len(self.kernel.parameters):
            self.fail(f"{len(arguments)} arguments for {len(self.kernel.parameters)} parameters")
        for n, ((name, size), value) in enumerate(zip(self.kernel.parameters, arguments, strict=True)):
            if hasattr(value, "box_at"):
                self.symbols[name] = address = MAPS + 128 * n
                self.maps[address] = value
                continue
            wide = np.int64(value) if isinstance(value, int) else np.float64(value) if type(value) is float else value
            self.passed[name] = wide.tobytes()
            if wide.nbytes != size:
                self.fail(f"argument {n} has {wide.nbytes} bytes; the parameter has {size}")

    def _teams(self) -> Array:
        """The first threads of all teams but the first. A team has some warps of some blocks of each cluster; those of a warpgroup stay
        together."""
        size = 32 * self.together * self.blocks // self.cluster
        groups = self.threads // size
        wanted = int(self.random.choice(TEAMS)) - 1
        return np.sort(self.random.permutation(groups - 1)[:wanted] + 1).astype(np.int64) * size

    # ---- for the functions of basic blocks

    def ids(self, at: Any) -> Array:
        """The threads of an index or a slice, as an index."""
        return self._all[at]

    def count(self, at: Any) -> int:
        return at.stop - at.start if isinstance(at, slice) else len(at)

    def narrow(self, ids: Array) -> Any:
        """A slice where that is what they are: arrays are then seen without a copy."""
        if ids.size and ids[-1] - ids[0] + 1 == ids.size:
            return slice(int(ids[0]), int(ids[-1]) + 1)
        return ids

    def where(self, at: Any, mask: Array) -> Any:
        """Those of the threads, None if there are none."""
        if mask.all():
            return at
        return self.narrow(self.ids(at)[mask]) if mask.any() else None

    def branch(self, at: Any, mask: Array, taken: int, following: int) -> Any:
        if mask.all():
            return ((taken, at),)
        if not mask.any():
            return ((following, at),)
        ids = self.ids(at)
        return ((taken, ids[mask]), (following, ids[~mask]))

    def leave(self, at: Any, mask: Array | None, following: int) -> Any:
        ids = self.ids(at)
        gone = ids if mask is None else ids[mask]
        self.left += np.bincount(self.block[gone], minlength=self.blocks)
        for barrier in list(self.barriers.arrived):
            self.barriers.release(barrier)
        return ((following, ids[~mask]),) if mask is not None and not mask.all() else ()

    def generic(self, address: Array, opcode: str) -> Array:
        """cvta: shared memory has a window of generic addresses, the others are their own."""
        if ".shared" not in opcode:
            return address
        window = address.dtype.type(SHARED_WINDOW)
        return address - window if ".to." in opcode else address + window

    def of_rank(self, address: Array, rank: Array) -> Array:
        """mapa"""
        if np.any(rank >= self.cluster):
            self.fail(f"block {int(np.max(rank))} of a cluster of {self.cluster}")
        return (address & np.uint32(0xFFFFFF)) | (rank + np.uint32(1)) << np.uint32(24)

    def address_of(self, name: str, dtype: Any) -> Any:
        if name not in self.symbols:
            self.fail(f"{name} is not known")
        return dtype.type(self.symbols[name])

    def map_at(self, address: int) -> Any:
        if address not in self.maps:
            self.fail("a copy by what is no tensor map")
        return self.maps[address]

    def parameter(self, name: str, offset: int, dtype: Any, count: int) -> list[Any]:
        return list(np.frombuffer(self.passed[name], dtype, count, offset))

    def fail(self, said: str) -> NoReturn:
        """Raises Fault, with the line of the source that is being run."""
        file, line = self.place
        name = self.kernel.files.get(file, "").rpartition("/")[2]
        raise Fault(f"{name}:{line}: {said}" if name else said)

    # ---- the order of things

    def team_of(self, thread: int) -> int:
        return int(np.searchsorted(self.cuts, thread, "right"))

    def push(self, number: int, ids: Array) -> None:
        """The threads go on at a basic block when the turn of their teams comes."""
        team = np.searchsorted(self.cuts, ids, "right")
        for own in np.unique(team).tolist():
            self.waiting[own].setdefault(number, []).append(ids[team == own])

    def run(self) -> None:
        """Until every thread has ended. Raises Fault, also where threads wait for ever."""
        existing = self._all[self.warp * 32 + self.lane < self.block_threads]
        self.push(0, existing)
        order, turns, steps = self.random.permutation(len(self.waiting)).tolist(), 0, 0
        first = [min] * len(order)  # of the basic blocks where a team's threads are, the one that is next
        polling: set[int] = set()  # teams that did nothing else in their last turns
        while any(self.waiting) or self._go_on():
            team = order[turns % len(order)]
            turns += 1
            seen = set()
            for _ in range(TURN):
                if not self.waiting[team]:
                    break
                seen.add(self._step(team, first[team]))
                steps += 1
            if self.waiting[team] and len(seen) <= POLLING:  # perhaps until others of the team have gone on, or copies
                first[team] = max if first[team] is min else min
                polling.add(team)
                if all(n in polling for n, waiting in enumerate(self.waiting) if waiting) and self._go_on():
                    polling.clear()
            else:
                polling.discard(team)
            if steps > MOST:
                self.fail(f"{steps} basic blocks and no end")
        if self.left.sum() != existing.size:
            waits = [*self.barriers.waits(), *self.mbarriers.waits(), *self.warps.waits()]
            self.fail(f"{existing.size - self.left.sum()} threads wait for ever: {'; '.join(waits[:4])}")
        self.copies.finish()

    def _go_on(self) -> bool:
        """Whether warps meet or copies happen that may come as late as this."""
        return self.warps.meet() or self.copies.go_on()

    def _step(self, team: int, first: Callable[[Iterable[int]], int]) -> int:
        """Runs a basic block of the team, and returns its number."""
        waiting = self.waiting[team]
        number = first(waiting)
        parts = waiting.pop(number)
        if (held := self.warps.held.pop((team, number), None)) is not None:
            parts.append(held)
        ids = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        for following, at in self.function(number)(self, self.narrow(ids)):
            waiting.setdefault(following, []).append(self.ids(at))
        return number


def _constant(kind: str, value: int | float) -> Any:
    dtype = TYPES[kind]
    if dtype.kind not in "iu":
        return dtype.type(value)
    return np.array(int(value) & (1 << dtype.itemsize * 8) - 1, f"u{dtype.itemsize}").view(dtype)[()]


def _initial(variable: Variable) -> Array:
    """The bytes of a variable in global memory, at an address as CUDA's."""
    memory = np.zeros(variable.bytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    memory = memory[begin : begin + variable.bytes]
    if variable.values:
        bits = 8 * variable.width
        words = [
            int(w[2:], 16) if w[:2].lower() in ("0f", "0d") else int(w, 0) & (1 << bits) - 1 for w in variable.values
        ]
        memory.view(f"u{variable.width}")[: len(words)] = words
    return memory
