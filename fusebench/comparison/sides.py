"""What the two sides of `fusebench compare A B` mean, and which cells of them are compared with which."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusebench.comparison.pairs import Match
from fusebench.configuration import command_line
from fusebench.contract import Cell
from fusebench.errors import UsageError
from fusebench.terminal import counted

EXPECTED = 'IMPLEMENTATION[:VARIANT][@REVISION], overrides in quotes, or both, such as "triton config.num_warps=8"'
OWN_KEYS = ("implementation", "case", "dtype", "precision", "batch", "shapes", "seed", "inputs")  # that a side may set
OWN_GROUPS = ("shape.", "option.", "config.", "worker.python.")


@dataclass(frozen=True)
class SideSpec:
    """One side as it was asked for: its overrides, and the revision of its kernels or None for the working tree."""

    name: str
    text: str
    lines: tuple[str, ...]
    revision: str | None


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The first two words, which are the sides, and the other arguments.

    Two bare KEY=VALUE words are sides if they set the same key: `compare dtype=float16 dtype=bfloat16 kernel=lola`. They may be
    named, wherever they stand: `compare kernel=lola a=triton b="triton config.num_warps=8"`.
    """
    given = command_line.flags(arguments).overrides
    named = {word[0].lower(): word for word in given if re.match(r"[aAbB]=", word)}
    if len(named) == 2:
        return [named[side][2:] for side in "ab"], [word for word in arguments if word not in named.values()]
    words = given[:2]
    keys = [word.split("=")[0] if "=" in word and len(word.split()) == 1 else None for word in words]
    if len(words) < 2 or (any(keys) and keys[0] != keys[1]):
        return [], list(arguments)
    rest = list(arguments)
    for word in words:
        rest.remove(word)
    return words, rest


def parse(name: str, text: str, groups: Sequence[str] = OWN_GROUPS) -> SideSpec:
    """Reads one side, which may set the keys of those groups. Raises UsageError for what is none."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"side {name} ({text}): {error}; expected {EXPECTED}") from error
    lines, revision = [], None
    for word in words:
        if "=" in word.split("@")[0]:
            lines.append(word)
            continue
        if word == ".":
            word = "@."
        implementation, at, wanted = word.partition("@")
        if (at and not wanted) or not word:
            raise UsageError(
                f"side {name} ({text}): no revision behind @; expected such as @HEAD~1, or @. for the working tree"
            )
        if implementation:
            lines.append(f"implementation={implementation}")
        revision = wanted if wanted not in ("", ".") else revision
    if not words:
        raise UsageError(f"side {name} is empty; expected {EXPECTED}")
    for override in command_line.parse(lines):
        key = override.key_or_group
        if key not in OWN_KEYS and not key.startswith(tuple(groups)):
            raise UsageError(
                f"side {name} ({text}): {key} cannot differ between the sides, which must be measured in the same way; "
                f"a side may set {', '.join(OWN_KEYS)}, {', '.join(g + 'NAME' for g in groups)}"
            )
    return SideSpec(name, text, tuple(lines), revision)


def with_lines(chosen: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any]:
    """The configuration with a side's overrides."""
    done = dict(chosen)
    for override in command_line.parse(lines):
        *groups, name = override.key_or_group.split(".")
        at = done
        for group in groups:
            at[group] = dict(at[group])
            at = at[group]
        at[name] = override.value()
    return done


def match(a: Sequence[Cell], b: Sequence[Cell]) -> list[Match]:
    """Pairs the cells of the sides: kernel by kernel and case by case, by name or else in order; within a case by label.

    One cell on each side always matches; otherwise both sides must have the same labels, or one implementation with the
    same variants. Raises UsageError that names what has no partner.
    """
    return [Match(pair) for pair in _paired(a, b, _labels)]


def pairs(a: Sequence[Cell], b: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """As `match`, but that in a case in which a side has one cell alone, that goes with each of the other side's. Raises UsageError."""

    def each(kernel: str, one: Sequence[Cell], two: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
        alone = min(len(one), len(two)) == 1
        return [(x, y) for x in one for y in two] if alone else _labels(kernel, one, two)

    return _paired(a, b, each)


Pairing = Callable[[str, Sequence[Cell], Sequence[Cell]], list[tuple[Cell, Cell]]]


def _paired(a: Sequence[Cell], b: Sequence[Cell], pairing: Pairing) -> list[tuple[Cell, Cell]]:
    """The cells of both sides, case by case as the pairing has them. Raises UsageError."""
    ours, theirs = _by_case(a), _by_case(b)
    if set(ours) != set(theirs):
        raise UsageError(
            f"only one side has {', '.join(sorted(set(ours) ^ set(theirs)))}: set kernel= to what both have"
        )
    found: list[tuple[Cell, Cell]] = []
    for kernel, cases in ours.items():
        others = theirs[kernel]
        if len(cases) != len(others):
            raise UsageError(
                f"side A has {_count(cases)} of {kernel}, side B {_count(others)}: expected as many on both sides"
            )
        keys = list(cases) if set(cases) == set(others) else list(others)
        for key, other in zip(cases, keys, strict=True):
            found += pairing(kernel, cases[key], others[other])
    return found


def _by_case(cells: Sequence[Cell]) -> dict[str, dict[tuple[Any, ...], list[Cell]]]:
    grouped: dict[str, dict[tuple[Any, ...], list[Cell]]] = {}
    for cell in cells:
        grouped.setdefault(cell.case.kernel, {}).setdefault((cell.case.id, cell.seed, cell.inputs), []).append(cell)
    return grouped


def case_name(cell: Cell) -> str:
    """The case, with what else tells its inputs from those of another row."""
    hard = "" if cell.inputs == "plain" else f" {cell.inputs} inputs"
    return cell.case.id + hard + (f" seed={cell.seed}" if cell.seed else "")


def _count(cases: Mapping[tuple[Any, ...], Any]) -> str:
    return f"{counted(len(cases), 'case')} ({', '.join(str(key[0]) for key in cases)})"


def _labels(kernel: str, a: Sequence[Cell], b: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """The cells of one case, one by one."""
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    names = ["label", "name"] + ["variant"] * all(len({cell.implementation for cell in side}) == 1 for side in (a, b))
    for name in names:  # with its config, without, and of one implementation against another
        ours, theirs = ({_key(cell, name): cell for cell in side} for side in (a, b))
        if set(ours) == set(theirs) and len(ours) == len(a) == len(b):
            return [(cell, theirs[key]) for key, cell in ours.items()]
    raise UsageError(
        f"of {kernel} side A has {_list(a)} and side B {_list(b)}: name one variant on each side, such as "
        f"{a[0].implementation}:{a[0].variant} {b[0].implementation}:{b[0].variant}"
    )


def _key(cell: Cell, name: str) -> str:
    return {"label": cell.label, "name": f"{cell.implementation}:{cell.variant}", "variant": cell.variant}[name]


def _list(cells: Iterable[Cell]) -> str:
    return ", ".join(cell.label for cell in cells)
