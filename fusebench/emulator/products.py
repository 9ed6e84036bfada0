"""The tensor cores: mma.sync, ldmatrix, stmatrix and wgmma, with the fragments and layouts of the PTX manual (Warp-Level and Asynchronous
Warpgroup-Level Matrix Instructions). Sums are made in float64 and rounded once; tf32 cuts off the bits that it does not hold.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from fusebench.emulator.arithmetic import TYPES

Array = Any
LANE = np.arange(32)
G, T = LANE // 4, LANE % 4  # row and pair of a lane in a fragment
PATTERN = 1024  # bytes of shared memory by which swizzled places repeat


def elements(registers: Array, kind: str) -> Array:
    """(…, n) registers of 32 bits as (…, n × elements of a register) float64."""
    registers = np.ascontiguousarray(registers)
    if kind == "tf32":
        return (registers & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    dtype = TYPES[kind]
    return registers.view(dtype).astype(np.float32).astype(np.float64)


def rows_of(registers: Array, kind: str, K: int) -> Array:
    """(warps, 16, K) of the left operand's fragments: (warps × 32, registers of 32 bits)."""
    per = 1 if kind == "tf32" else 2
    count = registers.shape[-1]
    values = elements(registers, kind).reshape(-1, 32, count, per)
    found = np.zeros((len(values), 16, K))
    for n in range(count):
        for e in range(per):
            found[:, G + 8 * (n % 2), per * T + e + 4 * per * (n // 2)] = values[:, :, n, e]
    return found


class Products:
    def __init__(self, machine: Any):
        self.m = machine

    def ldmatrix(self, at: Any, registers: tuple[Array, ...], address: Array, transposed: bool) -> None:
        """Each lane of eight names a row of 16 bytes of one of the matrices."""
        rows, block = self._rows_of_lanes("ldmatrix", at, address, len(registers))
        half = np.dtype("u2")
        for n, register in enumerate(registers):
            first = (block[:, :8] * self.m.memory.size + rows[:, 8 * n : 8 * n + 8]) // 2
            matrix = self.m.memory.shared.view(half)[first[:, :, None] + np.arange(8)]  # (warps, rows, columns)
            pair = np.stack(
                [matrix[:, 2 * T, G], matrix[:, 2 * T + 1, G]]
                if transposed
                else [matrix[:, G, 2 * T], matrix[:, G, 2 * T + 1]],
                -1,
            )
            register[at] = np.ascontiguousarray(pair).view(np.uint32).reshape(-1)

    def stmatrix(self, at: Any, registers: tuple[Array, ...], address: Array, transposed: bool) -> None:
        """As ldmatrix, the other way."""
        rows, block = self._rows_of_lanes("stmatrix", at, address, len(registers))
        half = np.dtype("u2")
        for n, register in enumerate(registers):
            first = (block[:, :8] * self.m.memory.size + rows[:, 8 * n : 8 * n + 8]) // 2
            pair = np.ascontiguousarray(register[at]).view(half).reshape(-1, 32, 2)
            matrix = np.empty((len(rows), 8, 8), half)
            for e in range(2):
                row, column = (2 * T + e, G) if transposed else (G, 2 * T + e)
                matrix[:, row, column] = pair[:, :, e]
            self.m.memory.shared.view(half)[first[:, :, None] + np.arange(8)] = matrix

    def _rows_of_lanes(self, opcode: str, at: Any, address: Array, matrices: int) -> tuple[Array, Array]:
        """The addresses that the lanes of each warp name, and their blocks."""
        if np.any(address % 16):
            self.m.fail(f"{opcode} of a row at no multiple of 16 bytes")
        rows = address.reshape(-1, 32)
        named = rows[:, : 8 * matrices]
        if named.min() < 0 or named.max() + 16 > self.m.memory.limit:
            self.m.fail(f"{opcode} at {int(named.max()):#x} of {self.m.memory.limit} bytes of shared memory")
        return rows, self.m.block[at].reshape(-1, 32)

    def mma(
        self,
        at: Any,
        shape: str,
        kind: str,
        to: tuple[Array, ...],
        a: tuple[Array, ...],
        b: tuple[Array, ...],
        c: tuple[Array, ...],
        sums: str,
    ) -> None:
        """m16n8k16 of 16 bits and m16n8k8, of 16 bits and of tf32."""
        if sums != "f32" or not shape.startswith("m16n8"):
            self.m.fail(f"mma {shape} {kind} with sums of {sums} is not known")
        K = int(shape.split("k")[1])
        per = 1 if kind == "tf32" else 2
        A = rows_of(np.stack([r[at] for r in a], -1), kind, K)
        right = elements(np.stack([r[at] for r in b], -1), kind).reshape(-1, 32, len(b), per)
        B = np.zeros((len(right), K, 8))
        for n in range(len(b)):
            for e in range(per):
                B[:, per * T + e + 4 * per * n, G] = right[:, :, n, e]
        product = A @ B
        for n in range(4):
            own = product[:, G + 8 * (n // 2), 2 * T + n % 2].reshape(-1)
            before = c[n][at].view(np.float32)
            to[n].view(np.float32)[at] = (own + before).astype(np.float32)

    def wgmma(
        self,
        at: Any,
        shape: str,
        kind: str,
        sums: tuple[Array, ...],
        left: Any,
        right: Array,
        adds: Any,
        signs: tuple[int, ...],
        transposed: tuple[int, int],
    ) -> None:
        """64 rows of a warpgroup. It is done before the wait for its group ends; operands in shared memory are read then."""
        if signs != (1, 1):
            self.m.fail("wgmma with signs is not known")
        N, K = (int(n) for n in re.fullmatch(r"m64n(\d+)k(\d+)", shape).groups())  # type: ignore[union-attr]
        ids = self.m.ids(at)
        adds = np.broadcast_to(adds, ids.shape).copy()
        of_registers = isinstance(left, tuple)
        left = [np.copy(v) for v in left] if of_registers else left.copy()
        right = right.copy()
        # threads by block and warp: (warpgroups, 128)
        order = np.lexsort((ids % 32, self.m.warp[ids] % 4, self.m.warp[ids] // 4, self.m.block[ids])).reshape(-1, 128)

        n, lane = np.arange(len(sums))[:, None], np.arange(128)  # a thread's sums, a thread of the warpgroup
        row, column = lane // 32 * 16 + G[lane % 32] + 8 * (n // 2 % 2), 8 * (n // 4) + 2 * T[lane % 32] + n % 2

        def happen(which: Array) -> None:
            of_block: dict[tuple[int, int], Array] = {}  # the right operand, which warpgroups of a block share
            for own in order:
                if not which[own].any():
                    continue
                if not which[own].all():
                    self.m.fail("the warps of a warpgroup wait for different groups")
                block, threads = int(self.m.block[ids[own[0]]]), ids[own]
                if of_registers:
                    A = rows_of(np.stack([v[own] for v in left], -1), kind, K).reshape(64, K)
                else:
                    A = self._matrix(block, int(left[own[0]]), 64, K, kind, transposed[0])
                operand = block, int(right[own[0]])
                if operand not in of_block:
                    of_block[operand] = self._matrix(*operand, N, K, kind, transposed[1])
                product = A @ of_block[operand].T
                before = np.stack([register[threads] for register in sums]).astype(np.float64)
                total = product[row, column] + np.where(adds[own], before, 0.0)
                for register, values in zip(sums, total.astype(np.float32), strict=True):
                    register[threads] = values

        self.m.copies.ask("wgmma", at, happen)

    def _matrix(self, block: int, descriptor: int, rows: int, K: int, kind: str, in_columns: int) -> Array:
        """(rows, K) of the operand that a matrix descriptor means."""
        start, leading, stride = (descriptor >> s & 0x3FFF for s in (0, 16, 32))
        start, leading, stride = start << 4, leading << 4, stride << 4
        width = {0: 16, 1: 128, 2: 64, 3: 32}[descriptor >> 62 & 3]
        size = 4 if kind == "tf32" else 2
        base = start - start % PATTERN
        place, last = _places(start - base, leading, stride, width, size, rows, K, bool(in_columns))
        if base + last + size > self.m.memory.limit:
            self.m.fail(f"wgmma reads at {base + last:#x} of {self.m.memory.limit} bytes of shared memory")
        offset = (block * self.m.memory.size + base) // size + place
        return elements(self.m.memory.shared.view(np.dtype(f"u{size}"))[offset], kind)


@functools.lru_cache(maxsize=256)
def _places(
    start: int, leading: int, stride: int, width: int, size: int, rows: int, K: int, in_columns: bool
) -> tuple[Array, int]:
    """Where the elements of an operand (rows, K) lie, in elements, and the last one in bytes: from a multiple of PATTERN on, by which
    swizzled places repeat."""
    r, k = np.meshgrid(np.arange(rows), np.arange(K), indexing="ij")
    if in_columns:
        panel = width // size
        place = start + r // panel * leading + k // 8 * stride + k % 8 * width + r % panel * size
    elif width == 16:
        place = start + r // 8 * stride + r % 8 * 16 + k * size // 16 * leading + k * size % 16
    else:
        place = start + r // 8 * stride + r % 8 * width + k * size
    place = place ^ ((place >> 7) & (width // 16 - 1)) << 4
    return place // size, int(place.max())
