"""Uniform registers of SASS: those that instructions read and no instruction writes.

ptxas 12.8, which Triton 3.6 and 3.7 bring along, loses the start of a descriptor where two chains of wgmma in straight code take their
second operand from one place of shared memory: it reads a uniform register that nothing wrote, and what the kernel multiplies is
whatever lies there. No sanitizer sees it; its listing does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fusebench.inspection.opcodes import registers
from fusebench.inspection.sass import Instruction

_REGISTER = re.compile(r"\bUR(\d+)\b")
_DESCRIPTORS = re.compile(r"\bg?desc\[UR(\d+)\]")
_GLOBAL = re.compile(r"\bgdesc\[UR(\d+)\]")
_ACCESS = re.compile(r"\bdesc\[UR(\d+)\]")


def unset(instructions: Sequence[Instruction]) -> list[int]:
    """The numbers of these registers, in order. Doubt counts as written: of operands of several registers the first alone is read, but for
    those of wgmma, whose descriptors take two each."""
    read: set[int] = set()
    written: set[int] = set()
    for instruction in instructions:
        parts = [part.strip() for part in instruction.operands.split(",")]
        # the destination comes first, or behind a predicate that is another one
        first = next((i for i, part in enumerate(parts[:2]) if re.fullmatch(r"UR\d+", part)), None)
        if first is not None and (first == 0 or re.fullmatch(r"U?P[\dT]", parts[0])):
            start = int(parts.pop(first)[2:])
            written |= set(range(start, start + registers(instruction.opcode)))
        rest = ",".join(parts)
        read |= {int(number) for number in _REGISTER.findall(_DESCRIPTORS.sub("", rest))}
        read |= {int(number) + i for number in _ACCESS.findall(rest) for i in range(2)}
        if instruction.opcode.startswith(("HGMMA", "QGMMA", "IGMMA")):
            # of both operands where x is in shared memory; of the second one alone, behind two that are not used, where it is in registers
            both = len(parts) > 1 and parts[1].startswith("gdesc")
            read |= {int(number) + i for number in _GLOBAL.findall(rest) for i in range(0 if both else 2, 4)}
    return sorted(read - written)
