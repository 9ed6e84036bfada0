"""What a user is told when the input is wrong: one line that names it, what was expected and what would work. And why what others wrote
went wrong, in a line."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable

PLACE = re.compile(r"at \d+:\d+:")  # how Triton's compile errors begin; the source follows, then why
PTXAS = re.compile(r"ptxas .*?(?:error|fatal) *: (.+)")  # in what it printed; its file has another name each time


class UsageError(ValueError):
    """Bad input. The command line prints its one line and exits with 2; the library raises it."""


class StorageError(OSError):
    """The disk does not take what was written. The run ends there, because no cell is at fault; what is on record is kept."""


def unknown(what: str, name: object, known: Iterable[str]) -> UsageError:
    """`unknown kernel 'lolla': did you mean lola? There are: launch, lola`; what is "case of lola" is `unknown case 'nope' of lola`."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1) or [n for n in names if name and n.startswith(str(name))]
    hint = f": did you mean {near[0]}?" if near else "."
    kind, of, owner = what.partition(" of ")
    return UsageError(f"unknown {kind} {str(name)!r}{of}{owner}{hint} There are: {', '.join(names) or 'none'}")


def cause(error: BaseException) -> str:
    """Why it was raised, in a line, "" where it has no words: the first line, and with Triton's the one that says what is wrong."""
    said = _lines(error)
    first = said[0] if said else ""
    if PLACE.fullmatch(first):
        inner = error
        while inner.__cause__:  # from a function that the kernel calls
            inner = inner.__cause__
        return " ".join([first, *_lines(inner)[-1:]])
    why = next(filter(None, map(PTXAS.match, said)), None)
    return f"{first}: {why[1]}" if why else first


def _lines(error: BaseException) -> list[str]:
    """What it says, without empty lines and Triton's mark below the place."""
    return [line for line in map(str.strip, str(error).splitlines()) if line not in ("", "^")]


def fail(error: UsageError) -> int:
    """Prints the one line of bad input and returns its exit code."""
    print(f"fusebench: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return 2
