"""What is expected of compiled code: `spills=0,HGMMA>=1,loop.MUFU.EX2>0`."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusebench.errors import UsageError, unknown
from fusebench.inspection import figures, opcodes
from fusebench.inspection.compiled import Compiled

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_TERM = re.compile(r"([A-Za-z_][\w.]*)\s*(==|!=|>=|<=|=|>|<)\s*(\d+)")
EXAMPLE = 'such as "spills=0,HGMMA>=1": a figure or an opcode, one of = != >= <= > <, and a number'


@dataclass(frozen=True)
class Expectation:
    name: str
    comparison: str
    number: int

    def met_by(self, compiled: Sequence[Compiled]) -> str:
        """What stands there instead, or "" where it is as expected."""
        found = figures.value(compiled, self.name)
        return "" if _COMPARE[self.comparison](found, self.number) else f"expected {self}, found {found}"

    @property
    def opcode(self) -> str:
        """The opcode that it counts, without modifiers, or "" where it is of a figure."""
        name = _plain(self.name)
        return "" if name in figures.NAMES else name.split(".")[0]

    def __str__(self) -> str:
        return f"{self.name}{self.comparison}{self.number}"


def parse(text: str) -> list[Expectation]:
    """The expectations in a text, with commas between. Raises UsageError for what is none."""
    return [_parse(term.strip()) for term in text.split(",")]


def check_opcodes(expected: Sequence[Expectation], compiled: Sequence[Compiled]) -> None:
    """Raises UsageError for an opcode that neither is known nor occurs: none of it is found, whatever the code is."""
    for name in filter(None, (one.opcode for one in expected)):
        if opcodes.is_known(name):
            continue
        there = {i.opcode.split(".")[0] for launch in compiled for i in launch.code.instructions}
        if name not in there:
            near = difflib.get_close_matches(name, sorted({*opcodes.NAMES, *there}), n=1) or ["HGMMA"]
            raise UsageError(
                f"expect: unknown opcode {name!r}: did you mean {near[0]}? Expected an opcode of SASS or a figure"
            )


def _plain(name: str) -> str:
    return name.removeprefix("loop.").removeprefix("beside.")


def _parse(term: str) -> Expectation:
    found = _TERM.fullmatch(term)
    if found is None:
        raise UsageError(f"expect: {term!r} is no expectation; expected some {EXAMPLE}")
    name = _plain(found[1])
    if name not in figures.NAMES and not name.split(".")[0].isupper():  # opcodes are in capitals
        raise unknown("figure", name, [*figures.NAMES, "HGMMA"])
    return Expectation(found[1], found[2], int(found[3]))
