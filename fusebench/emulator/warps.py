"""What the lanes of a warp do together: they wait for each other, exchange values and vote."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
REDUCTIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


class Warps:
    """Of all threads. `held` are threads, by team and basic block, that wait at its beginning for the rest of their warp."""

    def __init__(self, machine: Any):
        self.m = machine
        self.held: dict[tuple[int, int], Array] = {}
        # of an exchange whose lanes come from several places: who takes part, and what they bring
        self.meets = np.zeros(machine.threads, bool)
        self.brought = np.zeros(machine.threads, np.uint32)

    def whole(self, number: int, at: Any, lanes: int) -> Any:
        """Those whose warp (32 lanes) or warpgroup (128) is all here, None if there are none; the others are held."""
        step = 32 if lanes == 32 else lanes * self.m.blocks // self.m.cluster
        if isinstance(at, slice) and at.start % step == 0 and at.stop % step == 0:
            return at
        ids = self.m.ids(at)
        if self.meets[ids].all():
            return at
        group = self.m.block[ids] * self.m.warps_of_block + self.m.warp[ids] // (lanes // 32) * (lanes // 32)
        full = np.bincount(group)[group] == lanes
        if full.all():
            return at
        self.held[self.m.team_of(ids[0]), number] = ids[~full]
        return self.m.narrow(ids[full]) if full.any() else None

    def meet(self) -> bool:
        """Whether lanes of one warp wait at several exchanges or barriers, which go on as one: the compiler copies them into both arms of
        a branch."""
        meetings = self.m.kernel.meetings
        parts = [(n, ids) for (_, n), ids in self.held.items() if n in meetings]
        lanes = np.zeros(self.m.threads // 32, np.int64)
        for _, ids in parts:
            lanes += np.bincount(ids // 32, minlength=lanes.size)
        for number, ids in parts:
            own = ids[lanes[ids // 32] == 32]
            if brings := meetings[number]:
                self.brought[own] = self.m.registers[brings][own]
            self.meets[own] = True
            self.m.push(number, own)
        self.held = {key: rest for key, ids in self.held.items() if (rest := ids[~self.meets[ids]]).size}
        return bool(np.any(lanes == 32))

    def shuffled(self, at: Any, how: str, value: Array, other: Array, clamp: Array) -> tuple[Array, Array]:
        """shfl.sync: what the lane brings that each one names, and whether there is one (else its own)."""
        ids = self.m.ids(at)
        if not self.meets[ids].any():
            return _exchanged(how, np.broadcast_to(value, ids.shape), other, clamp)
        self.meets[ids] = False
        warps = (ids[:, None] // 32 * 32 + np.arange(32)).reshape(-1)  # for each thread its whole warp
        wide = [np.repeat(v, 32) if np.ndim(v) else v for v in (other, clamp)]
        found, inside = _exchanged(how, self.brought[warps], *wide)
        own = np.arange(ids.size) * 32 + ids % 32
        return found[own], inside[own]

    def voted(self, at: Any, how: str, value: Array) -> Array:
        """vote.sync."""
        votes = np.broadcast_to(value, (self.m.count(at),)).reshape(-1, 32)
        if how == "ballot":
            bits = votes.astype(np.uint64) << np.arange(32, dtype=np.uint64)
            return np.repeat(bits.sum(1).astype(np.uint32), 32)
        found = {"all": votes.all(1), "any": votes.any(1), "uni": votes.all(1) | ~votes.any(1)}[how]
        return np.repeat(found, 32)

    def reduced(self, at: Any, how: str, value: Array) -> Array:
        """redux.sync."""
        warps = np.broadcast_to(value, (self.m.count(at),)).reshape(-1, 32)
        return np.repeat(REDUCTIONS[how].reduce(warps, axis=1).astype(value.dtype), 32)

    def waits(self) -> list[str]:
        """For whom threads wait."""
        return [f"{ids.size} for the rest of their warp (lanes {_listed(ids % 32)})" for ids in self.held.values()]


def _exchanged(how: str, value: Array, other: Array, clamp: Array) -> tuple[Array, Array]:
    """By lanes of whole warps; segments and limits as the PTX manual has them (shfl.sync)."""
    lane = np.arange(32)
    value = value.reshape(-1, 32)
    other, clamp = (np.broadcast_to(v, value.size).reshape(-1, 32).astype(np.int64) for v in (other, clamp))
    segment, most = clamp >> 8 & 31, clamp & 31
    low = lane & segment
    limit = low | (most & ~segment)
    if how == "up":
        source = lane - other
        inside = source >= limit
    else:
        source = {"bfly": lane ^ other, "idx": low | (other & ~segment & 31), "down": lane + other}[how]
        inside = source <= limit
    source = np.where(inside, source, lane)
    return np.take_along_axis(value, source, 1).reshape(-1), np.broadcast_to(inside, value.shape).reshape(-1)


def _listed(lanes: Array) -> str:
    found = sorted(set(lanes.tolist()))
    return ", ".join(map(str, found[:8])) + (", …" if len(found) > 8 else "")
