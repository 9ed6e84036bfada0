"""nvdisasm's listings: the instructions of a kernel, predicates apart, and the loop in which it spends its time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fusebench.inspection import flow, lines
from fusebench.inspection.opcodes import class_of

_LINE = re.compile(
    r"\s*(?:\{\s*)?/\*([0-9a-fA-F]{4,})\*/\s+(?:\{\s*)?(?:(@!?U?P[0-9T]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;?\s*(?:\}\s*)?(?:/\*.*)?$"
)
_LABEL = re.compile(r"^([.$\w]+):")
_SOURCE = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
_TARGET = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True)
class Instruction:
    """`predicate` is "@!P0" or empty; `label` is where it may go, or empty; `address` is in bytes from the kernel's start; `line` is
    that of the source, `softmax/cuda.cu:22`, or empty."""

    address: int
    opcode: str
    operands: str = ""
    predicate: str = ""
    line: str = ""

    @property
    def label(self) -> str:
        found = _TARGET.search(self.operands)
        return found[1] if found else ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.predicate, self.opcode, self.operands)))


@dataclass(frozen=True)
class Code:
    """One kernel's instructions, without what the assembler fills the end up with, and the addresses of its labels."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    def hottest_loop(self) -> tuple[Instruction, ...]:
        """Of the innermost loops that do more than wait, the longest; where loops have tensor core instructions, of those that have
        them the innermost one with the most, and of several with as many the shortest. Empty where there is none."""
        with_products = flow.innermost(self, leave_out=lambda loop: _waits(loop) or not _products(loop))
        found = with_products or flow.innermost(self, leave_out=_waits)
        loops = [[self.instructions[n] for n in loop] for loop in found]
        # Two loops with the same products are of the same tiles: the longer one masks those at an edge, which are few.
        sign = -1 if with_products else 1
        loops.sort(key=lambda loop: (_products(loop), sign * len(loop)))
        return tuple(loops[-1]) if loops else ()


def parse(listing: str, symbol: str) -> Code:
    """The kernel with that symbol. Raises ValueError where the listing has none."""
    inside, labels, instructions, pending = False, dict[str, int](), list[Instruction](), list[str]()
    source, named = "", False
    for line in listing.splitlines():
        if line.split("\t")[:2] == ["", ".section"]:
            inside, source = f".text.{symbol}," in line, ""
        elif not inside:
            continue
        elif found := _SOURCE.match(
            line
        ):  # of an inlined function the first line is its own, those behind it its callers'
            source, named = source if named else lines.name(found[1], int(found[2])), True
            continue
        elif found := _LABEL.match(line):
            pending.append(found[1])
        elif found := _LINE.match(line):
            address = int(found[1], 16)
            labels |= dict.fromkeys(pending, address)
            pending.clear()
            instructions.append(Instruction(address, found[3], found[4], found[2] or "", source))
        named = False
    if not instructions:
        raise ValueError(f"the listing has no kernel {symbol}")
    return Code(tuple(_without_padding(instructions, labels)), labels)


def _without_padding(instructions: list[Instruction], labels: dict[str, int]) -> list[Instruction]:
    """Code ends in a branch to itself and in NOPs up to a multiple of 128 bytes, none of which is ever reached."""
    kept = list(instructions)
    while kept and kept[-1].opcode == "NOP":
        kept.pop()
    if kept and kept[-1].opcode == "BRA" and labels.get(kept[-1].label) == kept[-1].address:
        kept.pop()
    return kept


def _products(loop: Sequence[Instruction]) -> int:
    return sum(class_of(i.opcode) == "tensor core" for i in loop)


def _waits(loop: Sequence[Instruction]) -> bool:
    """Whether a loop does nothing but ask for a barrier again."""
    asks = any("TRYWAIT" in i.opcode or i.opcode.startswith("NANOSLEEP") for i in loop)
    return asks and not any(class_of(i.opcode) in ("tensor core", "shared", "special function") for i in loop)
