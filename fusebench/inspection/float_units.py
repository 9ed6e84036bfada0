"""What keeps float32 units from a product in each cycle, as an instruction list shows it: registers of one bank, and shared memory.

Measured on an H200 with loops whose registers were chosen by hand: registers are in two banks, of even and odd numbers, and each bank has one
read a cycle, which FFMA of three registers waits for, unless an operand is still there from the product before (`.reuse`). Which register
is written is of no account. A load from shared memory takes LATENCY cycles; 22 variants of one loop, of two warps a scheduler, took as
many cycles longer as its loads are late for one warp, to within 1 % (root mean square).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fusebench.inspection.opcodes import registers
from fusebench.inspection.sass import Instruction

BANKS, LATENCY = 2, 33
_REGISTER = re.compile(r"\bR(\d+)\b(\.reuse)?")


def bank_conflicts(instructions: Sequence[Instruction]) -> int:
    """Cycles that the products wait for their operands."""
    return sum(cycles - 1 for cycles in _cycles(instructions))


def load_waits(instructions: Sequence[Instruction], *, loop: bool) -> int:
    """Cycles that a warp which has the scheduler for itself waits for what it loads from shared memory; of one round of a `loop`."""
    cycles = _cycles(instructions)
    now = waits = 0
    there: dict[int, int] = {}  # when a register has what was loaded
    for _ in range(2 if loop else 1):
        waits = 0
        for i, own in zip(instructions, cycles, strict=True):
            named = [int(number) for number, _ in _REGISTER.findall(i.operands)]
            ready = max([now, *(there.get(number, 0) for number in named)])
            waits += ready - now
            if i.opcode.startswith("LDS"):
                there |= dict.fromkeys(range(named[0], named[0] + registers(i.opcode)), ready + LATENCY)
            now = ready + own
    return waits


def _cycles(instructions: Sequence[Instruction]) -> list[int]:
    """Of each instruction, those that it takes to be issued: one, but for products whose registers are of one bank."""
    kept: list[str | None] = [None] * 3  # an operand that is still there, by its place
    cycles = []
    for i in instructions:
        if i.opcode.split(".")[0] != "FFMA":
            cycles.append(1)
            continue
        operands = [_REGISTER.search(text) for text in i.operands.split(",")[1:4]]
        read = {found[1] for place, found in enumerate(operands) if found and found[1] != kept[place]}
        kept = [found[1] if found and found[2] else None for found in operands]
        cycles.append(max([1, *Counter(int(number) % BANKS for number in read).values()]))
    return cycles
