"""Cubins of one architecture as one ELF file: the disassembler takes half a second to start, and is started once for all of them.

Kept are the code, the functions' symbols, and the lines that the code is of. Kernels of one name are told apart by a prefix.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fusebench.inspection import elf
from fusebench.inspection.elf import FUNCTION, SECTION, SYMBOL

HEADER = "<16sHHIQQQIHHHHHH"
LINES = ".debug_line"
TARGET = (".note.nv.cuinfo", ".nv.compat")  # what the architecture is, beside the header: sm_100a, and not sm_100
NULL, BITS, SYMBOLS, STRINGS, RELA, REL = 0, 1, 2, 3, 4, 9  # types of sections
RELOCATION = {REL: "<QQ", RELA: "<QQq"}
FIRST = 6  # the number of the first section with code, behind the empty one and the five that all share
RULE = "//---------------------"  # what the listing of a section begins with


@dataclass(frozen=True)
class Function:
    """A function: its cubin's number and its own there, its name in the file of all, its symbol's fields, and its section."""

    key: tuple[int, int]
    name: str
    symbol: tuple[int, ...]
    section: elf.Section

    @property
    def home(self) -> tuple[int, str]:
        """Which section it is in: others may be in the same."""
        return self.key[0], self.section.name

    @property
    def local(self) -> bool:
        return self.symbol[1] >> 4 == 0


@dataclass(frozen=True)
class Relocation:
    """Where the lines name the address of a function."""

    offset: int
    function: tuple[int, int]
    kind: int
    addend: tuple[int, ...]


def architecture(cubin: bytes) -> tuple[object, ...]:
    """What the cubins of one file must have in common: their form, and the flags that say what they are for. Nothing of what is none."""
    header = struct.unpack_from(HEADER, cubin) if len(cubin) >= struct.calcsize(HEADER) else ()
    return tuple(header[place] for place in (0, 2, 7) if header)


def merge(cubins: Sequence[bytes]) -> bytes:
    """One file with the kernels of all, which have one architecture. Raises ValueError for what is no cubin."""
    functions, relocations, lines = list[Function](), list[Relocation](), b""
    for number, cubin in enumerate(cubins):
        sections = elf.sections(cubin)
        functions += _functions(number, sections)
        relocations += _relocations(number, sections, len(lines))
        lines += next((s.data for s in sections if s.name == LINES), b"")
    functions.sort(key=lambda f: not f.local)  # ELF wants them first
    told = [section for section in elf.sections(cubins[0]) if section.name in TARGET]
    return _file(struct.unpack_from(HEADER, cubins[0]), functions, lines, relocations, told)


def split(listing: str, count: int) -> list[str]:
    """The listing of each of the cubins, with the names that it has alone, and its labels counted from 0."""
    head, *sections = re.split(rf"(?m)^(?={RULE})", listing)
    found: list[list[str]] = [[] for _ in range(count)]
    for section in sections:
        if of := re.match(rf"{RULE} \.text\.fusebench(\d+)\.", section):
            found[int(of[1])].append(section)
    return [_alone(head + "".join(own), _prefix(number)) for number, own in enumerate(found)]


def _prefix(number: int) -> str:
    return f"fusebench{number}."


def _alone(text: str, prefix: str) -> str:
    numbers: dict[str, int] = {}

    def label(found: re.Match[str]) -> str:
        return f".L_x_{numbers.setdefault(found[0], len(numbers))}"

    return re.sub(r"\.L_x_\d+", label, text.replace(prefix, ""))


def _functions(number: int, sections: Sequence[elf.Section]) -> Iterator[Function]:
    named = {section.name: section for section in sections}
    for place, symbol in enumerate(struct.iter_unpack(SYMBOL, named[".symtab"].data)):
        section = sections[symbol[3]] if symbol[3] < len(sections) else None
        if symbol[1] & 15 == FUNCTION and section and section.name.startswith(".text."):
            name = _prefix(number) + elf.text(named[".strtab"].data, symbol[0])
            yield Function((number, place), name, symbol, section)


def _relocations(number: int, sections: Sequence[elf.Section], moved: int) -> Iterator[Relocation]:
    for section in sections:
        if section.name in (f".rel{LINES}", f".rela{LINES}"):
            for offset, info, *addend in struct.iter_unpack(RELOCATION[section.header[1]], section.data):
                yield Relocation(offset + moved, (number, info >> 32), info & 0xFFFFFFFF, tuple(addend))


def _file(
    header: Sequence[object],
    functions: Sequence[Function],
    lines: bytes,
    relocations: Sequence[Relocation],
    told: Sequence[elf.Section],
) -> bytes:
    """The file: its header, the bytes of its sections, their headers."""
    homes = list(dict.fromkeys(f.home for f in functions))
    numbers = {f.key: number for number, f in enumerate(functions, 1)}
    names, at = _strings([f.name for f in functions])
    symbols = bytes(struct.calcsize(SYMBOL))
    for f, name in zip(functions, at, strict=True):
        symbols += struct.pack(SYMBOL, name, *f.symbol[1:3], FIRST + homes.index(f.home), *f.symbol[4:])
    kind = RELA if any(r.addend for r in relocations) else REL
    moved = b"".join(
        struct.pack(RELOCATION[kind], r.offset, numbers[r.function] << 32 | r.kind, *r.addend) for r in relocations
    )
    local = 1 + sum(f.local for f in functions)
    # name, type, flags, bytes, link, info, alignment, size of an entry
    made: list[tuple[str, int, int, bytes, int, int, int, int]] = [
        ("", NULL, 0, b"", 0, 0, 0, 0),
        (".strtab", STRINGS, 0, names, 0, 0, 1, 0),
        (".symtab", SYMBOLS, 0, symbols, 1, local, 8, struct.calcsize(SYMBOL)),
        (LINES, BITS, 0, lines, 0, 0, 1, 0),
        (f".rel{'a' * (kind == RELA)}{LINES}", kind, 0, moved, 2, 3, 8, struct.calcsize(RELOCATION[kind])),
        (".shstrtab", STRINGS, 0, b"", 0, 0, 1, 0),
    ]
    kernels = {f.home: f for f in functions if not f.local}
    for home in homes:
        of, data = kernels[home].section.header, kernels[home].section.data
        title = f".text.{_prefix(home[0])}{home[1].removeprefix('.text.')}"
        info = of[7] & 0xFF << 24 | numbers[kernels[home].key]  # registers, symbol
        made.append((title, of[1], of[2], data, 2, info, of[8], of[9]))
    made += [(s.name, s.header[1], s.header[2], s.data, 0, 0, s.header[8], s.header[9]) for s in told]
    titles, at = _strings([section[0] for section in made])
    made[FIRST - 1] = (".shstrtab", STRINGS, 0, titles, 0, 0, 1, 0)
    body, table = bytearray(struct.calcsize(HEADER)), b""
    for name_at, (_, kind, flags, data, link, info, alignment, entry) in zip(at, made, strict=True):
        body += bytes(-len(body) % max(1, alignment))
        table += struct.pack(SECTION, name_at, kind, flags, 0, len(body), len(data), link, info, alignment, entry)
        body += data
    body += bytes(-len(body) % 8)
    changed = {5: 0, 6: len(body), 10: 0, 12: len(made), 13: FIRST - 1}  # no program headers
    struct.pack_into(HEADER, body, 0, *(changed.get(n, value) for n, value in enumerate(header)))
    return bytes(body) + table


def _strings(texts: Sequence[str]) -> tuple[bytes, list[int]]:
    """A table of strings, and where each stands in it."""
    ends = [text.encode() + b"\0" for text in texts]
    return b"\0" + b"".join(ends), [
        1 + end - len(text) for text, end in zip(ends, accumulate(map(len, ends)), strict=True)
    ]
