"""How instructions are shown: runs of one opcode on two lines, and opcodes by how often they stand there."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

LEAST_RUN = 3  # what two lines say shorter


class Shown(Protocol):
    @property
    def opcode(self) -> str: ...


def collapsed(instructions: Iterable[Shown]) -> Iterator[str]:
    """A line for each instruction; of a run of n with one opcode the first, and that n - 1 more follow."""
    for opcode, group in itertools.groupby(instructions, key=lambda i: i.opcode):
        run = list(group)
        if len(run) < LEAST_RUN:
            yield from map(str, run)
        else:
            yield str(run[0])
            yield f"… {len(run) - 1} more {opcode}"


def histogram(instructions: Sequence[Shown], threshold: int = 1) -> list[tuple[str, int]]:
    """(opcode, how often), the most frequent first; those that are rarer than the threshold together as "other opcodes". It sums to
    the number of instructions."""
    counts = Counter(i.opcode for i in instructions)
    often = [(opcode, n) for opcode, n in sorted(counts.items(), key=lambda c: (-c[1], c[0])) if n >= threshold]
    rest = len(instructions) - sum(n for _, n in often)
    return [*often, *([(f"{len(counts) - len(often)} other opcodes", rest)] if rest else [])]
