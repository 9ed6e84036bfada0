"""PTX: its instructions, predicates apart, and the floats that it writes as their bits."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np

from fusebench.inspection import lines

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.MULTILINE)
_LOC = re.compile(r"^(\s*\.loc\s+\d+\s+\d+)[^\n]*$", re.MULTILINE)
_WHOLE_LINE = re.compile(r"^\s*\.(?:file|section|version|target|address_size)\b[^\n]*$", re.MULTILINE)
_BODY = re.compile(r"\.(?:entry|func)\b[^{;]*\{")
_LEADING = re.compile(r"^(?:[{}\s]|[$%\w]+:(?!:))+")
_PREDICATE = re.compile(r"^(@!?%?[$\w]+)\s+")
_FLOAT = re.compile(r"\b0([fFdD])([0-9a-fA-F]{16}|[0-9a-fA-F]{8})\b")


@dataclass(frozen=True)
class Instruction:
    """`predicate` is "@%p1" or empty; `line` is that of the source, `softmax/triton.py:22`, or empty."""

    opcode: str
    operands: str = ""
    predicate: str = ""
    line: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.predicate, self.opcode, self.operands)))


def parse(text: str) -> list[Instruction]:
    """The instructions of all functions, in order. Braces, labels, declarations and directives are none."""
    plain = _COMMENT.sub("", text)
    files = {f[1]: f"{f[2]}/{f[3]}" if f[3] else f[2] for f in _FILE.finditer(plain)}
    plain = _LOC.sub(r"\1;", _WHOLE_LINE.sub("", plain))
    found: list[Instruction] = []
    for start in _BODY.finditer(plain):
        line = ""
        for statement in plain[start.end() : _end(plain, start.end())].split(";"):
            rest = " ".join(_LEADING.sub("", statement.strip()).split())
            if rest.startswith(".loc "):
                _, file, number = rest.split()
                line = lines.name(files.get(file, ""), int(number))
            elif made := _instruction(rest, line):
                found.append(made)
    return found


def _instruction(rest: str, line: str) -> Instruction | None:
    """The instruction of a statement, without what stands before it."""
    predicate = ""
    if found := _PREDICATE.match(rest):
        predicate, rest = found[1], rest[found.end() :]
    opcode, _, operands = rest.partition(" ")
    if not opcode or opcode.startswith("."):
        return None
    return Instruction(opcode, operands, predicate, line)


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
