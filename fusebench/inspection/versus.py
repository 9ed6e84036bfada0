"""`vs=`: the other side of a comparison of compiled code, and how two sides differ."""

from __future__ import annotations

import difflib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import cases, discovery
from fusebench.comparison import revision
from fusebench.configuration import command_line
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown
from fusebench.inspection import figures, stages
from fusebench.inspection.cells import Inspected
from fusebench.inspection.compiled import Compiled
from fusebench.inspection.sass import Instruction

KEYS = ("implementation", "case", "dtype", "precision", "batch", "arch")
GROUPS = ("shape", "option", "config")
EXPECTED = (
    'expected IMPLEMENTATION[:VARIANT][@REVISION], KEY=VALUE, or several in quotes, such as vs="config.num_stages=3"'
)
WORKING_TREE = ("", ".")  # in the place of a revision
FEW = 4  # cells that an error names one by one
MOST_OPCODES = 20  # of those that differ, in a comparison
# what two programs that do the same may call otherwise: registers and whether they are kept at hand, predicates, labels
_NAMES = (
    (re.compile(r"\b(U?[RPB])\d+\b"), r"\1"),
    (re.compile(r"\.reuse\b"), ""),
    (re.compile(r"%([a-z]+)\d+"), r"%\1"),
    # .L_x_12 in SASS, $L__BB0_3 in PTX; modifiers such as .LT, .LUT and .L1::evict_last begin alike
    (re.compile(r"(?<!\w)[.$]L_\w+"), "label"),
    (re.compile(r"\$__internal_\d+_"), "$__internal_"),  # the number of a function that ptxas adds
)


def other(chosen: Mapping[str, Any], text: str) -> tuple[dict[str, Any], str]:
    """The configuration of the other side, and the revision of its kernels or "". Raises UsageError."""
    if not text.strip():
        raise UsageError(f"vs= is empty; {EXPECTED}")
    done, wanted = dict(chosen), ""
    for word in text.split():
        if "=" not in word.split("@")[0]:
            name, at, wanted = word.partition("@")
            if at and not wanted:
                raise UsageError(f"vs={text}: no revision behind @; {EXPECTED}")
            done |= {"implementation": name} if name else {}
            continue
        (override,) = command_line.parse([word])
        group, _, name = override.key_or_group.partition(".")
        if group in GROUPS and name:
            if name not in done[group]:
                raise unknown(f"{group} key of vs={text}", name, done[group])
            done[group] = {**done[group], name: override.value()}
        elif override.key_or_group in KEYS:
            done[group] = override.value()
        else:
            raise unknown(f"key of vs={text}", override.key_or_group, [*KEYS, *(f"{g}.NAME" for g in GROUPS)])
    return done, wanted


def with_kernels(
    wanted: str, kernels: Mapping[str, Kernel], roots: Sequence[Path], inspect: Callable[[Mapping[str, Kernel], Sequence[Path]], list[Inspected]],
) -> list[Inspected]:  # fmt: skip
    """What `inspect` gives for the kernels of a revision, below their roots; "" and "." are the working tree. Raises UsageError."""
    if wanted in WORKING_TREE:
        return inspect(kernels, roots)
    checkout = revision.repository(roots[1:])
    commit = revision.resolve(checkout, wanted)
    with tempfile.TemporaryDirectory(prefix="fusebench-") as folder:
        try:
            theirs = revision.export(checkout, commit, roots, Path(folder))
            return inspect(discovery.find_kernels(theirs), theirs)
        finally:
            discovery.use_roots(roots)


def pairs(a: Sequence[Inspected], b: Sequence[Inspected], text: str) -> list[tuple[Inspected, Inspected]]:
    """The cells of both sides, in their order: one with one, or as many with as many. Raises UsageError."""
    skipped = [x for x in (*a, *b) if _skipped(x)]
    a, b = [x for x in a if not _skipped(x)], [x for x in b if not _skipped(x)]
    if len(a) != len(b) or not a:
        ours, theirs = _said(a, b), _said(b, a)
        reasons = dict.fromkeys(f"{x.cell.label}: {x.reason}" for x in skipped if x.reason)
        why = "".join(f"; {reason}" for reason in list(reasons)[:FEW])
        raise UsageError(f"vs={text}: both sides must have the same number of cells; here {ours}, there {theirs}{why}")
    return list(zip(a, b, strict=True))


def _said(side: Sequence[Inspected], other: Sequence[Inspected]) -> str:
    """The labels of a side's cells; of many cells how many, and which the other side has fewer of."""
    own, theirs = (Counter(x.cell.label for x in one) for one in (side, other))
    if len(side) <= FEW:
        return ", ".join(own.elements()) or "none"
    more = ", ".join(f"{count} more of {label}" for label, count in (own - theirs).items())
    return f"{len(side)}" + (f" ({more})" if more else "")


def _skipped(one: Inspected) -> bool:
    return not one.launches and not one.failed


def lines(a: Compiled, b: Compiled, stage: str | None) -> Iterator[str]:
    """How two launches differ: their figures, those that differ first; the opcodes that one has more of; and of a stage the lines,
    with registers and labels by kind alone."""
    if a.digest == b.digest:
        yield f"same machine code ({a.digest})"
        if stage in (None, "sass"):
            return
    left, right = figures.row(a), figures.row(b)
    loops = (a.code.hottest_loop(), b.code.hottest_loop())
    left["loop instructions"], right["loop instructions"] = map(len, loops)
    yield f"{'':24}{'A':>10}{'B':>10}{'B - A':>10}"
    for name in sorted(left, key=lambda n: left[n] == right[n]):
        yield _row(name, left[name], right[name])
    parts: list[tuple[str, Sequence[Instruction], Sequence[Instruction]]]
    parts = [("", a.code.instructions, b.code.instructions), ("loop ", *loops)]
    for where, one, two in parts:
        counts = [Counter(i.opcode for i in part) for part in (one, two)]
        differ = {o: counts[1][o] - counts[0][o] for o in {*counts[0], *counts[1]} if counts[0][o] != counts[1][o]}
        ordered = sorted(differ, key=lambda o: (-abs(differ[o]), o))
        for opcode in ordered[:MOST_OPCODES]:
            yield _row(where + opcode, counts[0][opcode], counts[1][opcode])
        if rest := ordered[MOST_OPCODES:]:
            yield f"{where}{len(rest)} more opcodes differ, by {abs(differ[rest[0]])} or less"
    if stage is not None:
        if without := [f"{side}: {said}" for side, one in (("A", a), ("B", b)) if (said := stages.lacking(one, stage))]:
            yield from without
            return
        ours, theirs = ([normalised(line) for line in stages.plain(c, stage)] for c in (a, b))
        yield from difflib.unified_diff(ours, theirs, "A", "B", n=2, lineterm="")


def _row(name: str, a: int, b: int) -> str:
    return f"{name:24}{a:10}{b:10}{b - a:+10}" if a != b else f"{name:24}{a:10}{b:10}{'':10}"


def normalised(line: str) -> str:
    """The line with registers, predicates and labels by their kinds."""
    for pattern, kind in _NAMES:
        line = pattern.sub(kind, line)
    return line


def check(text: str, chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> None:
    """Raises UsageError for a side or a revision that does not exist; a revision's cells are looked at when its kernels are there."""
    done, wanted = other(chosen, text)
    if wanted in WORKING_TREE:
        cases.select_cells(kernels, done)
    else:
        paths = [path for path in cases.as_list(chosen["path"]) if path is not None]
        revision.resolve(revision.repository(paths), wanted)
