"""What a cubin, an ELF file, says of its kernels: registers, stack, static shared memory, and the bytes of their code."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

REGISTERS, FRAME = 0x2F, 0x11  # attributes of .nv.info: (symbol, number) each
WITH_SIZE = 4  # the format of an attribute whose value stands behind its size
FUNCTION = 2  # the type of a symbol
SECTION, SYMBOL = "<IIQQQQIIQQ", "<IBBHQQ"  # the fields of a section's header and of a symbol


@dataclass(frozen=True)
class Section:
    name: str
    size: int  # in bytes
    data: bytes  # none where the file has none, as for shared memory
    header: tuple[int, ...]  # its ten fields in the file


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: `registers` of a thread, bytes of `stack` of a thread and of static `shared` memory of a block. `code`
    is its machine code."""

    registers: int
    stack: int
    shared: int
    code: bytes


def resources(cubin: bytes, symbol: str) -> Resources:
    """What the kernel with that symbol takes. Raises ValueError where the cubin has no such kernel."""
    found = sections(cubin)
    named = {section.name: section for section in found}
    if f".text.{symbol}" not in named:
        raise ValueError(f"no kernel {symbol} in the cubin")
    number = _symbol(named[".symtab"].data, named[".strtab"].data, symbol)
    info = list(_attributes(named[".nv.info"].data))
    shared = named.get(f".nv.shared.{symbol}")
    return Resources(
        registers=next((value for kind, of, value in info if kind == REGISTERS and of == number), 0),
        stack=next((value for kind, of, value in info if kind == FRAME and of == number), 0),
        shared=_static(found, shared),
        code=named[f".text.{symbol}"].data,
    )


RESERVED = 1024  # bytes that the system keeps in a block's shared memory from Hopper on, counted in the section


def _static(sections: list[Section], shared: Section | None) -> int:
    """Bytes that the kernel itself declares."""
    reserved = RESERVED if any(s.name.startswith(".nv.shared.reserved") for s in sections) else 0
    return max(0, (shared.size if shared else 0) - reserved)


def sections(file: bytes) -> list[Section]:
    """All sections, in their order. Raises ValueError for what is no 64-bit ELF file."""
    if file[:5] != b"\x7fELF\x02":
        raise ValueError("not a cubin: no 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", file, 40)
    size, count, names = struct.unpack_from("<HHH", file, 58)
    headers = [struct.unpack_from(SECTION, file, start + size * n) for n in range(count)]
    texts = headers[names][4]
    no_data = 8  # SHT_NOBITS
    return [
        Section(text(file, texts + h[0]), h[5], b"" if h[1] == no_data else file[h[4] : h[4] + h[5]], h)
        for h in headers
    ]


def text(data: bytes, start: int) -> str:
    """The string that begins there and ends in a 0."""
    return data[start : data.index(b"\0", start)].decode()


def _symbol(table: bytes, names: bytes, wanted: str) -> int:
    """The number of a function among the symbols."""
    for number, (name, info, *_) in enumerate(struct.iter_unpack(SYMBOL, table)):
        if info & 15 == FUNCTION and text(names, name) == wanted:
            return number
    return -1


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(attribute, symbol, number) of the attributes that say a number of a symbol."""
    place = 0
    while place + 4 <= len(info):
        form, kind, size = struct.unpack_from("<BBH", info, place)
        place += 4
        if form == WITH_SIZE:
            if size == 8:
                yield kind, *struct.unpack_from("<II", info, place)
            place += size
