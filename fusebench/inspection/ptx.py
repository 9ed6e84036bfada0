"""PTX: its instructions, predicates apart, and the floats that it writes as their bits."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WHOLE_LINE = re.compile(r"^\s*\.(?:loc|file|section|version|target|address_size)\b[^\n]*$", re.MULTILINE)
_BODY = re.compile(r"\.(?:entry|func)\b[^{;]*\{")
_LEADING = re.compile(r"^(?:[{}\s]|[$%\w]+:(?!:))+")
_PREDICATE = re.compile(r"^(@!?%?[$\w]+)\s+")
_FLOAT = re.compile(r"\b0([fFdD])([0-9a-fA-F]{16}|[0-9a-fA-F]{8})\b")


@dataclass(frozen=True)
class Instruction:
    """`predicate` is "@%p1" or empty."""

    opcode: str
    operands: str = ""
    predicate: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.predicate, self.opcode, self.operands)))


def parse(text: str) -> list[Instruction]:
    """The instructions of all functions, in order. Braces, labels, declarations and directives are none."""
    plain = _WHOLE_LINE.sub("", _COMMENT.sub("", text))
    found: list[Instruction] = []
    for start in _BODY.finditer(plain):
        body = plain[start.end() : _end(plain, start.end())]
        found += filter(None, map(_instruction, body.split(";")))
    return found


def _instruction(statement: str) -> Instruction | None:
    rest = " ".join(_LEADING.sub("", statement.strip()).split())
    predicate = ""
    if found := _PREDICATE.match(rest):
        predicate, rest = found[1], rest[found.end() :]
    opcode, _, operands = rest.partition(" ")
    if not opcode or opcode.startswith("."):
        return None
    return Instruction(opcode, operands, predicate)


def _end(text: str, place: int) -> int:
    """Where the braces that are open at `place`, one, are closed."""
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, place):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    return len(text)


def with_decimal_floats(text: str) -> str:
    """The text with the floats that stand there as their bits written as numbers: 0f3F19999A as 0.6."""
    return _FLOAT.sub(_decimal, text)


def _decimal(found: re.Match[str]) -> str:
    single, bits = found[1] in "fF", found[2]
    if len(bits) != (8 if single else 16):
        return found[0]
    (value,) = struct.unpack(">f" if single else ">d", bytes.fromhex(bits))
    shortest = np.float32(value) if single else np.float64(value)
    return str(shortest)  # the fewest digits that are that number and no other
