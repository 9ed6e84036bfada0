"""The lines of Python and CUDA C++ that instructions are of: their names, their text, and what each became."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Protocol

from fusebench.backends.cuda import below_kernels
from fusebench.inspection.listing import Shown, collapsed
from fusebench.inspection.opcodes import CLASSES, by_class

UNKNOWN = "(no line)"
REST = "other lines"
WIDEST = 80  # characters of a line that stand in a table


class Placed(Shown, Protocol):
    @property
    def line(self) -> str: ...


@dataclass(frozen=True)
class Line:
    """What one line became: how many instructions in the whole kernel and in its hottest loop, and those by class: of the loop, or of
    the whole where there is none."""

    name: str
    whole: int
    loop: int
    classes: dict[str, int]


def name(file: str, number: int) -> str:
    """`softmax/cuda.cu:22`, by the file's name below its root: a compiler's cache may have the file of another checkout. "" for a
    line that is none."""
    parts = PurePosixPath(file).parts
    if not parts or not number:
        return ""
    below = below_kernels(parts)
    return f"{'/'.join(parts[max(0, len(parts) - 3) + 1 :] if below is None else below)}:{number}"


def counted(whole: Sequence[Placed], loop: Sequence[Placed], threshold: int = 1) -> list[Line]:
    """The lines of a kernel, those first that have most instructions in its hottest loop, then in the whole; those with fewer than
    the threshold together. They sum to the instructions of both."""
    everywhere, inside = Counter(i.line for i in whole), Counter(i.line for i in loop)
    order = sorted(everywhere, key=lambda line: (-inside[line], -everywhere[line], line))
    kept = [line for line in order if (inside if loop else everywhere)[line] >= threshold]
    groups = [[line] for line in kept] + ([rest] if (rest := [line for line in order if line not in kept]) else [])
    return [
        Line(
            (group[0] or UNKNOWN) if group[0] in kept else f"{len(group)} {REST}",
            sum(everywhere[line] for line in group),
            sum(inside[line] for line in group),
            by_class(i for i in (loop or whole) if i.line in group),
        )
        for group in groups
    ]


def columns(line: Line, roots: Sequence[Path]) -> list[str]:
    """The cells of a table's row: the name, the text, the counts, the classes."""
    shown = text(line.name, tuple(roots))[:WIDEST]
    return [line.name, shown, str(line.whole), str(line.loop), *(str(line.classes[kind]) for kind in CLASSES)]


def annotated(instructions: Sequence[Placed], roots: Sequence[Path]) -> Iterator[str]:
    """Instructions as `collapsed` shows them, below the line that they are of."""
    for line, group in itertools.groupby(instructions, key=lambda i: i.line):
        yield f"{line or UNKNOWN}  {text(line, tuple(roots))}".rstrip()
        yield from (f"    {shown}" for shown in collapsed(group))


@cache
def text(line: str, roots: tuple[Path, ...]) -> str:
    """The text of a line, or "" where its file is not there."""
    file, _, number = line.rpartition(":")
    found = next((path for root in roots if (path := root / file).is_file()), None)
    if found is None or not number.isdigit():
        return ""
    every = found.read_text(encoding="utf-8", errors="replace").splitlines()
    return every[int(number) - 1].strip() if 0 < int(number) <= len(every) else ""
