"""What is expected of compiled code: `spills=0,HGMMA>=1,loop.MUFU.EX2>0`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusebench.errors import UsageError, unknown
from fusebench.inspection import figures
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

    def __str__(self) -> str:
        return f"{self.name}{self.comparison}{self.number}"


def parse(text: str) -> list[Expectation]:
    """The expectations in a text, with commas between. Raises UsageError for what is none."""
    return [_parse(term.strip()) for term in text.split(",")]


def _parse(term: str) -> Expectation:
    found = _TERM.fullmatch(term)
    if found is None:
        raise UsageError(f"expect: {term!r} is no expectation; expected some {EXAMPLE}")
    name = found[1].removeprefix("loop.").removeprefix("beside.")
    if name not in figures.NAMES and not name.split(".")[0].isupper():  # opcodes are in capitals
        raise unknown("figure", name, [*figures.NAMES, "HGMMA"])
    return Expectation(found[1], found[2], int(found[3]))
